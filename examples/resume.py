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
from ratchet.experiment_files.loading import load_experiment
from ratchet.tracking import RunFolder

RATCHET = Path(sys.executable).parent / "ratchet"
FILE = Path(__file__).parents[1] / "experiments" / "binary_erasure_channel.yaml"
RUN = "killed"
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
    changes = [*SMALL, f"settings.run_id={RUN}", *overrides]
    runs = load_experiment(FILE, changes).settings.runs
    kill_after([str(RATCHET), "run", str(FILE), *changes], Path(runs) / RUN, iteration=4)
    result = resume_experiment(RUN, runs=runs)
    print(f"found {result.found} stages, made {result.made}")
    print(f"accuracy {result.metrics['main']['test']['test_accuracy']:.1%}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
