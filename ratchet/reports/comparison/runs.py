"""The trained experiments that a comparison is made of, read from run folders and checked.

What cannot be compared is refused here: unfinished runs and other test data. One experiment that
several runs have is counted once.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.errors import DataError
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.discovery import load_plugins
from ratchet.reports.labels import arm_label
from ratchet.statistics.results import tested
from ratchet.tracking.content import flatten
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder

MAIN_TEST = "test"
_NO_DIFFERENCE = ("seed", "base_run")


@dataclass(frozen=True)
class ComparedRun:
    """One trained experiment: an arm of a run.

    Attributes
    ----------
    label
        The run's id, with the arm where there are several.
    seed
        What makes it a repetition of others.
    parameters
        Dotted path → value, of those that it reads; without the seed.
    tables
        The tests' tables by name: "test", "test-NAME".
    data_hashes
        Dataset → hash of its content.
    code
        The commit that it was begun with, "+" behind it if there were changes.
    arm
        Its name in its run.
    run_id, experiment
        The run, and the experiment file's name.
    versions
        Package → the version that it was made with.
    """

    label: str
    seed: int
    parameters: Mapping[str, Any]
    hyper_params: Mapping[str, Any]
    tables: Mapping[str, ResultTable] = field(default_factory=dict)
    data_hashes: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[MetricPoint] = ()
    code: str = ""
    arm: str = ""
    run_id: str = ""
    experiment: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def read_compared_runs(
    folders: Sequence[RunFolder], *, skip_unfinished: bool = False
) -> tuple[list[ComparedRun], list[str]]:
    """Read the arms of all runs; return them, and notes on what was left out or merged.

    Members that their sweep pruned are left out: they are as finished as they are to be.

    Raises
    ------
    DataError
        If a run is not finished, with the command that goes on; if there is nothing to compare; or
        if two are the same experiment with different results.
    """
    load_plugins()
    found: list[ComparedRun] = []
    unfinished: list[str] = []
    pruned: list[str] = []
    for folder in folders:
        manifest = folder.manifest
        if manifest.status == "completed":
            found += _arms(folder, manifest)
        elif manifest.status == "pruned":
            pruned.append(folder.run_id)
        else:
            unfinished.append(folder.run_id)
    if unfinished and not skip_unfinished:
        commands = "\n".join(f"  ratchet resume {run_id}" for run_id in unfinished)
        raise DataError(
            f"compare: {len(unfinished)} of {len(folders)} runs are not finished; finish them, or"
            f" leave them out with --skip-unfinished:\n{commands}"
        )
    if not found:
        raise DataError("compare: got no finished run, expected some. `ratchet runs` lists them.")
    merged, notes = _merge_identical(found)
    if pruned:
        notes.append(f"Left out, since their sweep pruned them: {', '.join(pruned)}.")
    if unfinished:
        notes.append(f"Left out, since they are not finished: {', '.join(unfinished)}.")
    return merged, notes


def check_same_tests(runs: Sequence[ComparedRun], *, allow_different: bool = False) -> list[str]:
    """Make sure that all were tested on the same datapoints, or return notes on what differs.

    Raises
    ------
    DataError
        If test data differ.
    """
    notes = []
    for table in shared_tests(runs):
        by_data: dict[str, list[str]] = defaultdict(list)
        for run in runs:
            by_data[_tested_on(run, table)].append(run.label)
        if len(by_data) == 1:
            continue
        text = "; ".join(f"{what}: {_some(labels)}" for what, labels in sorted(by_data.items()))
        if not allow_different:
            raise DataError(
                f"compare: not all were tested on the same datapoints of {table!r} ({text})."
                f" Give the data a seed of their own (e.g. {_seeded(runs)}.dataset_seed=0), let"
                " every run test all datapoints (rl.num_test_iterations), or say with"
                " --different-data that you compare them all the same."
            )
        notes.append(f"Not tested on the same datapoints of {table!r}: {text}.")
    return notes


def shared_tests(runs: Sequence[ComparedRun]) -> list[str]:
    """List the tests that all runs have, "test" first."""
    names = set.intersection(*(set(run.tables) for run in runs)) if runs else set()
    return sorted(names, key=lambda name: (name != MAIN_TEST, name))


def _arms(folder: RunFolder, manifest: RunManifest) -> list[ComparedRun]:
    points, tables = folder.read_metrics(), folder.read_tables()
    code = (manifest.code.commit or "")[:12] + ("+" if manifest.code.dirty else "")
    several = len(manifest.arms) > 1
    return [
        ComparedRun(
            label=arm_label(manifest.run_id, arm, several=True) if several else manifest.run_id,
            seed=int(hyper_params.get("seed", 0)),
            parameters=_read_parameters(hyper_params),
            hyper_params=hyper_params,
            tables={
                table.name: table
                for table in tables
                if table.arm == arm and table.name.partition("-")[0] == MAIN_TEST and len(table)
            },
            data_hashes=manifest.dataset_hashes.get(arm, {}),
            points=[point for point in points if point.arm == arm],
            code=code,
            arm=arm,
            run_id=manifest.run_id,
            experiment=manifest.name,
            versions=manifest.versions,
        )
        for arm, hyper_params in manifest.arms.items()
    ]


def _read_parameters(hyper_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the experiment reads: no sections of other trainers, protocols and scenarios."""
    trainer = hyper_params.get("trainer", "")
    trainer = trainer.get("class_name", "") if isinstance(trainer, Mapping) else str(trainer)
    place = {
        "protocol": str(hyper_params.get("interaction_protocol", "")),
        "scenario": str(hyper_params.get("scenario", "")),
    }
    pretrains = hyper_params.get("pretrain_agents", False)
    left_out = set(_NO_DIFFERENCE)
    for name, section in SECTIONS.items():
        if not section.concerns(trainer=trainer, **place) and not (
            pretrains and name == "solo_agent"
        ):
            left_out.add(name)
    return flatten({name: v for name, v in hyper_params.items() if name not in left_out})


def _merge_identical(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[str]]:
    """Count an experiment once however many runs have it, and return notes that say so.

    Twice, it would look like two seeds that agree. Arms that override what is swept are made once,
    too: their runs share the stored stages.
    """
    kept: dict[str, ComparedRun] = {}
    copies: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        key = json.dumps([run.seed, dict(run.parameters)], sort_keys=True, default=str)
        first = kept.setdefault(key, run)
        if first is run:
            continue
        if first.tables != run.tables:
            raise DataError(
                f"compare: {first.label} and {run.label} are the same experiment with the same seed"
                f" ({run.seed}) but have other results, of other code perhaps; expected each once."
                " Leave one out."
            )
        copies[first.label].append(run.label)
    notes = [
        f"Counted once, since they are one experiment: {first}, {_some(others)}."
        for first, others in copies.items()
    ]
    return list(kept.values()), notes


def _tested_on(run: ComparedRun, table: str) -> str:
    """Describe the datapoints of a test: their number, and a digest of their content."""
    columns = run.tables[table].columns
    rows = sorted(tested(columns))
    dataset = MAIN_TEST if table == MAIN_TEST else table.removeprefix(f"{MAIN_TEST}-")
    content = json.dumps([run.data_hashes.get(dataset), rows])
    return f"{len(rows):,} datapoints {hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _seeded(runs: Sequence[ComparedRun]) -> str:
    """Name the section that has the seed of the data."""
    return str(runs[0].hyper_params.get("scenario", "graph_isomorphism"))


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return f"{shown} and {len(labels) - 3} more" if len(labels) > 3 else shown
