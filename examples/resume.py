"""Kill a run in the middle of its training, and go on with it from Python.

Run it:  python examples/resume.py            (settings.home=FOLDER … may follow)

What had been stored when the process was killed is found; only the rest is made. The result is,
bit for bit, that of a run that nobody disturbed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from flows import ExperimentResult, resume_experiment
from flows.runs.identity import MAIN_ARM, stable_run_id
from ratchet.experiment_files.loading import load_experiment
from ratchet.tracking import RunFolder

RATCHET = Path(sys.executable).parent / "ratchet"
FILE = Path(__file__).parents[1] / "experiments" / "binary_erasure_channel.yaml"
SMALL = ("arms=null", "rl.num_iterations=30", "settings.iterations_per_task=2")


def kill_after(command: list[str], folder: Path, iteration: int) -> None:
    """Start a run as a process and kill it when its state after ``iteration`` is stored."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if (folder / "manifest.json").exists():
            stages = RunFolder(folder).manifest.stages
            if any(done.stage == "train" and done.iteration >= iteration for done in stages):
                process.send_signal(signal.SIGKILL)
        time.sleep(0.05)


def main(*overrides: str) -> ExperimentResult:
    """Start a run, kill it, go on with it."""
    changes = [*SMALL, *overrides]
    chosen = load_experiment(FILE, changes)
    run_id = stable_run_id(chosen.name, {MAIN_ARM: chosen.hyper_params})
    command = [str(RATCHET), "run", str(FILE), *changes]
    kill_after(command, Path(chosen.settings.runs) / run_id, iteration=4)
    result = resume_experiment(run_id, runs=chosen.settings.runs)
    print(f"{run_id}: found {result.found} stages, made {result.made}")
    print(f"accuracy {result.metrics['main']['test']['test_accuracy']:.1%}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
