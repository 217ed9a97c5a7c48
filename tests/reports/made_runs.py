"""Synthetic runs for comparisons, in the format of the flow."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.tracking.environment import CodeState
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder

SCORES = [0, 0, 0, 1, 2, 3]


def hyper_params(**changes):
    given = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    return HyperParameters(**given).replace(plain)


def table(name, right, size=60):
    """Return a table in which the first ``right`` of every ten decisions are correct."""
    y = [1 if SCORES[i % 6] == 0 else 0 for i in range(size)]
    correct = [int(i % 10 < right) for i in range(size)]
    columns = {
        "datapoint_id": list(range(size)),
        "y": y,
        "decision": [label if ok else 1 - label for label, ok in zip(y, correct, strict=True)],
        "correct": correct,
        "wl_score": [SCORES[i % 6] for i in range(size)],
    }
    return ResultTable(name, columns)


def make_run(
    runs: Path, run_id: str, right: int, *, status="completed", size=60, arm="main", **changes
):
    """Create a run with curves and one test; ``right`` of ten decisions are correct."""
    params = hyper_params(**changes)
    manifest = RunManifest(
        run_id=run_id,
        name="made",
        status=status,
        arms={arm: params.to_dict()},
        seeds={arm: params.seed},
        code=CodeState(commit="c0ffee" * 7, dirty=False),
        dataset_hashes={arm: {"train": "a" * 64, "test": "b" * 64, "hard": "c" * 64}},
        command=["ratchet", "sweep", "made.yaml", "seed=0..2"],
    )
    folder = RunFolder.create(runs, manifest)
    rng = random.Random(run_id)
    for iteration in range(6):
        value = 0.5 + 0.05 * iteration + rng.gauss(0, 0.02)
        folder.append_metrics("train", iteration, {"verifier.accuracy": value})
    folder.append_metrics("test", 6, {"accuracy": right / 10, "mean_episode_length": 1.0 + right})
    folder.write_table(replace(table("test", right, size), arm=arm))
    return folder


def make_sweep(runs: Path, rights=((5, 6, 7), (8, 9, 9)), protocols=("adp", "nip")):
    """Create a run for each protocol and seed."""
    return [
        make_run(runs, f"{protocol}-{seed}", right, interaction_protocol=protocol, seed=seed)
        for protocol, own in zip(protocols, rights, strict=True)
        for seed, right in enumerate(own)
    ]


def labels(comparison):
    """Return the labels of a comparison's groups."""
    return [group.label for group in comparison.grouping.groups]
