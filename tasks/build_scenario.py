"""The stage that builds an arm's datasets."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.rollouts.dataset import StoredDataset
from ratchet.scenarios.validation_split import split_datasets
from ratchet.seeding import derive_seed, seeded_globals
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.files import DATASETS_FILE, DATASETS_FOLDER
from tasks.stages.session import BaseSession


@stage
def build_scenario(call: StageCall, folder: Path, session: BaseSession) -> Metrics:
    """Build the datasets; write each into a folder of its name, and their hashes.

    The metrics are the numbers of datapoints, and counts of those written by models.
    """
    hyper_params = session.keys.hyper_params
    with (
        session.model_calls(call) as calls,
        seeded_globals(derive_seed(hyper_params.seed, call.stage)),
    ):
        datasets = split_datasets(session.keys.scenario, hyper_params, calls)
    for name, dataset in datasets.items():
        dataset.save(folder / DATASETS_FOLDER / name)
    hashes = {name: dataset.hash for name, dataset in sorted(datasets.items())}
    (folder / DATASETS_FILE).write_text(json.dumps(hashes, indent=1) + "\n")
    values = {f"num_datapoints/{name}": float(len(data)) for name, data in datasets.items()}
    for name, data in datasets.items():
        if isinstance(data, StoredDataset):
            values |= {f"{note}/{name}": float(count) for note, count in data.notes.items()}
    if calls is not None and session.keys.scenario.asked_for_data(hyper_params):
        from tasks.text.files import usage_metrics, write_usage

        write_usage(folder, calls.usage)
        values |= usage_metrics(calls.usage)
    return [IterationMetrics(iteration=0, values=values)]
