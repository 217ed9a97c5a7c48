"""Orchestration overhead: a flow's wall time minus the sum of its stages' times.

Runs one experiment twice in one process and a temporary folder: computed, then fully cached. Then
runs one with more training stages, to measure the overhead per stage, and the first again with
``ratchet run`` in a new process. Run with ``python benchmarks/orchestration.py``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ratchet.experiment_files.loading import ExperimentFile

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

SETTLING = 5.0
"""Seconds before each run. While Prefect's server still records the previous run, SQLite may refuse
a transaction, and Prefect's client retries after two seconds."""


def main() -> None:
    """Print the table."""
    from flows.runs.run import run_experiment
    from ratchet.experiment_files.loading import load_experiment

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "orchestration.yaml"
        file.write_text(EXPERIMENT)
        overrides = [f"settings.runs={folder}/runs", f"settings.home={folder}/home"]
        warm = load_experiment(file, [*overrides, "rl.num_iterations=1", "seed=1"])
        run_experiment(warm.hyper_params, warm.settings, name="warm")  # starts Prefect's server
        chosen = load_experiment(file, overrides)

        fresh = run(chosen, folder)
        cached = run(chosen, folder)
        longer = run(load_experiment(file, [*overrides, "rl.num_iterations=64", "seed=2"]), folder)
        ratchet = Path(sys.executable).parent / "ratchet"
        command = [str(ratchet), "run", str(file), *overrides]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        command_seconds = time.perf_counter() - start

    added = (longer.beside - fresh.beside) / (longer.num_stages - fresh.num_stages)
    table = Table("figure", "value", title="Orchestration")
    for one in (fresh, longer):
        table.add_row(f"a run of {one.num_stages} stages, with MLflow and report", one.wall_text)
        table.add_row("  mean training stage", f"{one.training:.2f} s")
        table.add_row("  overhead", f"{one.beside:.2f} s = {one.beside / one.wall:.1%}")
    table.add_row("overhead of each additional stage", f"{1000 * added:.0f} ms")
    table.add_row("fully cached, in a running process", cached.wall_text)
    table.add_row("fully cached, new process with Prefect's server", f"{command_seconds:.2f} s")
    Console().print(table)


@dataclass(frozen=True)
class Timing:
    """Seconds of a run, of its stages, and of its mean training stage."""

    wall: float
    work: float
    training: float
    """Mean over training stages."""
    num_stages: int

    @property
    def beside(self) -> float:
        """Overhead: time outside stages."""
        return self.wall - self.work

    @property
    def wall_text(self) -> str:
        """Wall time as text."""
        return f"{self.wall:.2f} s"


def run(experiment: ExperimentFile, folder: str) -> Timing:
    """Run an experiment and return its times."""
    from flows.runs.run import run_experiment
    from ratchet.tracking.run_folder import find_run

    time.sleep(SETTLING)
    start = time.perf_counter()
    result = run_experiment(experiment.hyper_params, experiment.settings, name=experiment.name)
    wall = time.perf_counter() - start
    stages = find_run(Path(folder) / "runs", result.run_id).manifest.stages
    training = [stage.seconds for stage in stages if stage.stage == "train"]
    work = sum(stage.seconds for stage in stages)
    return Timing(wall, work, sum(training) / len(training), len(stages))


if __name__ == "__main__":
    main()
