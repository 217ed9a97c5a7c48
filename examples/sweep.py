"""Run an experiment for every combination of values, from Python.

Run it:  python examples/sweep.py            (accepts overrides, e.g. settings.home=FOLDER)
Then:    python examples/compare.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows import ExperimentResult, run_sweep
from ratchet.experiment_files.loading import load_experiment

FILE = Path(__file__).parents[1] / "experiments" / "binary_erasure_channel.yaml"
SMALL = ("arms=null", "rl.num_iterations=20", "rl.frames_per_batch=512")
SAME_DATA = "binary_erasure_channel.dataset_seed=0"  # otherwise test data differ between seeds
GRID = {"interaction_protocol": ["solo_verifier", "adp"], "seed": [0, 1, 2]}


def main(*overrides: str) -> list[ExperimentResult]:
    """Train a verifier without and with a prover, with three seeds each."""
    chosen = load_experiment(FILE, [*SMALL, SAME_DATA, *overrides])
    results = run_sweep(
        chosen.hyper_params, GRID, chosen.settings, name=chosen.name, sweep_name="alone_or_not"
    )
    for result in results:
        print(f"{result.run_id}: accuracy {result.metrics['main']['test']['test_accuracy']:.1%}")
    return results


if __name__ == "__main__":
    main(*sys.argv[1:])
