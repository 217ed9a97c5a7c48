"""Fork a run from Python: reuse its first iterations, then change parameters.

Run it:  python examples/fork.py            (accepts overrides, e.g. settings.home=FOLDER)
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows import ExperimentResult, fork_experiment, run_experiment
from ratchet.experiment_files.loading import load_experiment

FILE = Path(__file__).parents[1] / "experiments" / "binary_erasure_channel.yaml"
SMALL = ("arms=null", "rl.num_iterations=20", "settings.iterations_per_task=5")


def main(*overrides: str) -> tuple[ExperimentResult, ExperimentResult]:
    """Train for 20 iterations, then fork at the tenth with a smaller learning rate."""
    chosen = load_experiment(FILE, [*SMALL, *overrides])
    parent = run_experiment(chosen.hyper_params, chosen.settings, name=chosen.name)
    fork = fork_experiment(parent.run_id, 10, {"rl.lr": 0.001}, chosen.settings)
    for name, result in (("parent", parent), ("fork", fork)):
        accuracy = result.metrics["main"]["test"]["test_accuracy"]
        print(
            f"{name}: {result.computed} computed, {result.cached} cached, accuracy {accuracy:.1%}"
        )
    return parent, fork


if __name__ == "__main__":
    main(*sys.argv[1:])
