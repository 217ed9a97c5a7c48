"""Kill a run during training and resume it from Python.

Run it:  python examples/resume.py            (accepts overrides, e.g. settings.home=FOLDER)

Stages stored before the kill are cache hits; only the rest is computed. The result is bit for bit
that of an uninterrupted run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from flows import ExperimentResult, resume_experiment
from ratchet.experiment_files.loading import load_experiment
from ratchet.tracking import RunFolder

RATCHET = Path(sys.executable).parent / "ratchet"
FILE = Path(__file__).parents[1] / "experiments" / "binary_erasure_channel.yaml"
RUN = "killed"
SMALL = ("arms=null", "rl.num_iterations=30", "settings.iterations_per_task=2")


def kill_after(command: list[str], folder: Path, iteration: int) -> None:
    """Start a run in a subprocess and kill it once its state after ``iteration`` is stored."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if (folder / "manifest.json").exists():
            stages = RunFolder(folder).manifest.stages
            if any(done.stage == "train" and done.iteration >= iteration for done in stages):
                process.send_signal(signal.SIGKILL)
        time.sleep(0.05)


def main(*overrides: str) -> ExperimentResult:
    """Start a run, kill it and resume it."""
    changes = [*SMALL, f"settings.run_id={RUN}", *overrides]
    runs = load_experiment(FILE, changes).settings.runs
    kill_after([str(RATCHET), "run", str(FILE), *changes], Path(runs) / RUN, iteration=4)
    result = resume_experiment(RUN, runs=runs)
    print(f"{result.cached} stages cached, {result.computed} computed")
    print(f"accuracy {result.metrics['main']['test']['test_accuracy']:.1%}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
