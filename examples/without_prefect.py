"""Run an experiment in a plain Python process, without Prefect and its server.

Run it:  python examples/without_prefect.py     (accepts overrides, e.g. settings.home=FOLDER)

Stages, keys and the run's folder are those of ``ratchet run``: a killed script continues where it
stopped, and either finds the other's stages. Stages run sequentially in this process; there is
no Prefect UI.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows import ExperimentResult, run_without_prefect
from ratchet.experiment_files.loading import load_experiment

FILE = Path(__file__).parents[1] / "experiments" / "binary_erasure_channel.yaml"


def main(*overrides: str) -> ExperimentResult:
    """Run the main arm for a few iterations; a second call only finds cached stages."""
    file = load_experiment(FILE, ("arms=null", "rl.num_iterations=4", *overrides))
    result = run_without_prefect(file.hyper_params, file.settings, name=file.name)
    print(f"{result.cached} stages cached, {result.computed} computed; report: {result.report}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
