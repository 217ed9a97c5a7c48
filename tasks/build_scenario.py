"""The stage that makes an arm's datasets."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.seeding import derive_seed, seeded_globals
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.datasets import DATASETS_FILE, DATASETS_FOLDER
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import BaseSession


@stage
def build_scenario(call: StageCall, folder: Path, session: BaseSession) -> Metrics:
    """Make the datasets; write each into a folder of its name, and their hashes.

    The metrics are the numbers of datapoints.
    """
    hyper_params = session.keys.hyper_params
    with seeded_globals(derive_seed(hyper_params.seed, call.stage)):
        datasets = session.keys.scenario.build_datasets(hyper_params)
    for name, dataset in datasets.items():
        dataset.save(folder / DATASETS_FOLDER / name)
    hashes = {name: dataset.hash for name, dataset in sorted(datasets.items())}
    (folder / DATASETS_FILE).write_text(json.dumps(hashes, indent=1) + "\n")
    sizes = {f"num_datapoints/{name}": float(len(data)) for name, data in datasets.items()}
    return [IterationMetrics(iteration=0, values=sizes)]
