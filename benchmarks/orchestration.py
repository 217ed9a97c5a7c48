"""What stages cost beside their work: the flow's wall time against the sum of its stages' times.

Runs one experiment twice in a temporary folder, in one process: first anew, then fully cached;
and once more as a whole process, as a user would. Run with ``python benchmarks/orchestration.py``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

EXPERIMENT = """
scenario: graph_isomorphism
trainer: vanilla_ppo
dataset: generated
graph_isomorphism: {num_pairs: 800}
agents: {_default: {use_dual_gnn: false, num_transformer_layers: 1, use_batch_norm: false}}
nip_protocol: {max_message_rounds: 4}
rl: {num_iterations: 16, frames_per_batch: 1024, minibatch_size: 128}
settings: {iterations_per_task: 2, progress: none}
"""


def main() -> None:
    """Print the table."""
    from flows.run import run_experiment
    from ratchet.parameters.loading import load_experiment
    from ratchet.tracking.run_folder import find_run

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "orchestration.yaml"
        file.write_text(EXPERIMENT)
        places = [f"settings.runs={folder}/runs", f"settings.home={folder}/home"]
        warm = load_experiment(file, [*places, "rl.num_iterations=1", "seed=1"])
        run_experiment(warm.hyper_params, warm.settings, name="warm")  # starts Prefect's server
        chosen = load_experiment(file, places)

        def run() -> float:
            start = time.perf_counter()
            run_experiment(chosen.hyper_params, chosen.settings, name=chosen.name)
            return time.perf_counter() - start

        fresh = run()
        (path,) = (Path(folder) / "runs").glob("orchestration-*")
        stages = find_run(path.parent, path.name).manifest.stages
        work = sum(stage.seconds for stage in stages)
        training = [stage.seconds for stage in stages if stage.stage == "train"]
        cached = run()
        ratchet = Path(sys.executable).parent / "ratchet"
        command = [str(ratchet), "run", str(file), *places]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - start

    table = Table("figure", "value", title="Orchestration")
    table.add_row("stages", f"{len(stages)}, {len(training)} of training")
    table.add_row("mean training stage", f"{sum(training) / len(training):.2f} s")
    table.add_row("wall time of the run, MLflow and report included", f"{fresh:.2f} s")
    table.add_row("work of the stages", f"{work:.2f} s")
    table.add_row("beside the work", f"{fresh - work:.2f} s = {(fresh - work) / fresh:.1%}")
    table.add_row("  for each stage", f"{1000 * (fresh - work) / len(stages):.0f} ms")
    table.add_row("fully cached, in a process that is up", f"{cached:.2f} s")
    table.add_row("fully cached, whole process with Prefect's server", f"{whole:.2f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
