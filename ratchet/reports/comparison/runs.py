"""Runs of a comparison: read from run folders, checked and grouped.

Unfinished runs and different test data raise errors; duplicate experiments are merged. Runs that
differ only in their seed are repetitions in one group; other parameters define groups or tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from ratchet.errors import DataError, ParameterError, nearest
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.reading.discovery import load_plugins
from ratchet.reports.labels import arm_label
from ratchet.reports.tables import default_path, show
from ratchet.statistics.results import tested
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.mirrors.payload import flatten
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
        Run id, with the arm if there are several.
    seed
        Seed that distinguishes repetitions.
    parameters
        Dotted path → value of the parameters that it uses; without the seed.
    tables
        The tests' tables by name: "test", "test-NAME".
    data_hashes
        Dataset → hash of its content.
    code
        Commit at its start, followed by "+" for changes or untracked files.
    arm
        Its name in its run.
    run_id, experiment
        The run, and the experiment file's name.
    versions
        Package → version used.
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
    """Read the arms of all runs; return them with notes on skipped or merged runs.

    Pruned members of sweeps are skipped.
    """
    load_plugins()
    completed_runs: list[ComparedRun] = []
    unfinished: list[str] = []
    pruned: list[str] = []
    for folder in folders:
        manifest = folder.manifest
        if manifest.status == "completed":
            completed_runs += _arms(folder, manifest)
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
    if not completed_runs:
        raise DataError("compare: got no finished run, expected some. `ratchet runs` lists them.")
    merged, notes = _merge_identical(_with_same_paths(completed_runs))
    if pruned:
        notes.append(f"Left out, since their sweep pruned them: {', '.join(pruned)}.")
    if unfinished:
        notes.append(f"Left out, since they are not finished: {', '.join(unfinished)}.")
    return merged, notes


def check_same_tests(
    runs: Sequence[ComparedRun], *, allow_different: bool = False, same_seeds: bool = False
) -> list[str]:
    """Check that all runs were tested on the same datapoints; return notes on differences.

    If all groups have the ``same_seeds``, each seed may have its own data.
    """
    if same_seeds and _each_seed_has_its_own_data(runs):
        return [OWN_DATA]
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
                f" {_advice(runs)}"
            )
        notes.append(f"Not tested on the same datapoints of {table!r}: {text}.")
    return notes


def _each_seed_has_its_own_data(runs: Sequence[ComparedRun]) -> bool:
    """Return whether tests differ between seeds, and never between runs of a seed."""
    tested = {
        (run.seed, table, _tested_on(run, table)) for table in shared_tests(runs) for run in runs
    }
    of_a_seed = {(seed, table) for seed, table, _ in tested}
    different = {(table, data) for _, table, data in tested}
    return len(tested) == len(of_a_seed) and len(different) > len(shared_tests(runs))


def shared_tests(runs: Sequence[ComparedRun]) -> list[str]:
    """List the common tests, "test" first."""
    names = set.intersection(*(set(run.tables) for run in runs)) if runs else set()
    return sorted(names, key=lambda name: (name != MAIN_TEST, name))


def _arms(folder: RunFolder, manifest: RunManifest) -> list[ComparedRun]:
    points, tables = folder.read_metrics(), folder.read_tables()
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
            code=manifest.code.short,
            arm=arm,
            run_id=manifest.run_id,
            experiment=manifest.name,
            versions=manifest.versions,
        )
        for arm, hyper_params in manifest.arms.items()
    ]


def _read_parameters(hyper_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in use, without sections of other trainers, protocols, scenarios."""
    trainer = hyper_params.get("trainer", "")
    trainer = trainer.get("class_name", "") if isinstance(trainer, Mapping) else str(trainer)
    components = {
        "protocol": str(hyper_params.get("interaction_protocol", "")),
        "scenario": str(hyper_params.get("scenario", "")),
    }
    pretrains = hyper_params.get("pretrain_agents", False)
    left_out = set(_NO_DIFFERENCE)
    for name, section in SECTIONS.items():
        if not section.concerns(trainer=trainer, **components) and not (
            pretrains and name == "solo_agent"
        ):
            left_out.add(name)
    return flatten({name: v for name, v in hyper_params.items() if name not in left_out})


def _with_same_paths(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Make a section one value if another run has a plain one instead: a name, null or empty."""
    paths = {path for run in runs for path in run.parameters}

    def parameters(run: ComparedRun) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for path, value in run.parameters.items():
            sections = accumulate(path.split(".")[:-1], "{}.{}".format)
            section = next((each for each in sections if each in paths), None)
            if section is None:
                merged[path] = value
            else:
                merged.setdefault(section, {})[path.removeprefix(f"{section}.")] = value
        return merged

    return [replace(run, parameters=parameters(run)) for run in runs]


def _results(run: ComparedRun) -> dict[str, Any]:
    """Return the columns of a run's tables, for any name of its arm."""
    return {name: table.columns for name, table in run.tables.items()}


def _merge_identical(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[str]]:
    """Merge duplicate experiments; return the distinct ones and notes.

    Duplicates would count as agreeing seeds. They also occur in sweeps whose arms override the
    swept parameter: these runs share stored stages.
    """
    distinct_runs: dict[str, ComparedRun] = {}
    copies: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        key = json.dumps([run.seed, dict(run.parameters)], sort_keys=True, default=str)
        first = distinct_runs.setdefault(key, run)
        if first is run:
            continue
        if _results(first) != _results(run):
            raise DataError(
                f"compare: {first.label} and {run.label} are the same experiment with the same seed"
                f" ({run.seed}) but have other results, of other code perhaps; expected each once."
                " Leave one out."
            )
        copies[first.label].append(run.label)
    if not copies:
        return list(distinct_runs.values()), []
    named = [f"{first}, {_some(others)}" for first, others in copies.items()]
    note = f"Counted once, since they are one experiment: {_some(named, '; ')}."
    return list(distinct_runs.values()), [note]


def _tested_on(run: ComparedRun, table: str) -> str:
    """Describe the datapoints of a test: their number, and a digest of their content."""
    columns = run.tables[table].columns
    rows = sorted(tested(columns))
    dataset = MAIN_TEST if table == MAIN_TEST else table.removeprefix(f"{MAIN_TEST}-")
    content = json.dumps([run.data_hashes.get(dataset), rows])
    return f"{len(rows):,} datapoints {hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _advice(runs: Sequence[ComparedRun]) -> str:
    """Return how to test on the same data: with its seed only if the scenario has one."""
    scenario = str(runs[0].hyper_params.get("scenario"))
    has_seed = "dataset_seed" in runs[0].hyper_params.get(scenario, {})
    seed = f"Give the data a separate seed (e.g. {scenario}.dataset_seed=0), let"
    return (
        f"{seed if has_seed else 'Let'} every run test all datapoints (rl.num_test_iterations),"
        " or pass --allow-data-mismatch to compare them anyway."
    )


def _some(labels: Sequence[str], separator: str = ", ") -> str:
    listed = separator.join(labels[:3])
    return f"{listed} and {len(labels) - 3} more" if len(labels) > 3 else listed


_ARM = "arm"
OWN_DATA = "Each seed has its own test data, the same for all groups."


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, by task.

    ``values`` contains the group's differing parameters by dotted path.
    """

    label: str
    values: Mapping[str, Any]
    tasks: Sequence[Sequence[ComparedRun]]

    @property
    def runs(self) -> list[ComparedRun]:
        """All runs of all tasks."""
        return [run for task in self.tasks for run in task]

    @property
    def seeds(self) -> list[int]:
        """Seeds of all tasks."""
        return sorted({run.seed for run in self.runs})


@dataclass(frozen=True)
class Grouping:
    """All groups, the parameters that distinguish them, and their common tasks."""

    paths: Sequence[str]
    groups: Sequence[Group]
    tasks: Sequence[str]

    @property
    def is_by_arm(self) -> bool:
        """Whether the groups are arms, or arms with further differing parameters."""
        return list(self.paths[:1]) == [_ARM]


def group_runs(runs: Sequence[ComparedRun], task_paths: Sequence[str] = ()) -> Grouping:
    """Group runs in the given order.

    The parameters ``task_paths`` define tasks instead of groups.
    """
    differing = differing_paths(runs)
    for path in task_paths:
        if path not in differing:
            raise ParameterError(
                f"compare: {path} does not differ between these runs; expected one that does."
                f"{nearest(path, differing)}"
            )
    paths = [path for path in differing if path not in task_paths]
    by_group: dict[Hashable, dict[Hashable, list[ComparedRun]]] = {}
    for run in runs:
        tasks = by_group.setdefault(_values(run, paths), {})
        tasks.setdefault(_values(run, task_paths), []).append(run)
    tasks_seen = list(dict.fromkeys(task for tasks in by_group.values() for task in tasks))
    groups = [_make_group(tasks, tasks_seen, paths, task_paths) for tasks in by_group.values()]
    first = [next(r for r in runs if _values(r, task_paths) == task) for task in tasks_seen]
    return Grouping(paths, groups, [_label(run, task_paths) for run in first])


def group_by_arm(runs: Sequence[ComparedRun]) -> Grouping:
    """Group runs by the name of their arm and the parameters in which the runs of an arm differ."""
    by_arm: dict[str, list[ComparedRun]] = {}
    for run in runs:
        by_arm.setdefault(run.arm, []).append(run)
    paths = sorted({path for group_runs in by_arm.values() for path in differing_paths(group_runs)})
    by_group: dict[tuple[str, Hashable], list[ComparedRun]] = {}
    for arm, group_runs in by_arm.items():
        for run in group_runs:
            by_group.setdefault((arm, _values(run, paths)), []).append(run)
    groups = []
    for (arm, _), group_runs in by_group.items():
        label = f"{arm} · {_label(group_runs[0], paths)}" if paths else arm
        seeds = [run.seed for run in group_runs]
        if len(set(seeds)) < len(seeds):
            raise DataError(f"compare: {label} has a seed twice: {sorted(seeds)}.")
        values = {path: group_runs[0].parameters.get(path) for path in paths}
        groups.append(Group(label, {_ARM: arm, **values}, [group_runs]))
    return Grouping([_ARM, *paths], groups, [_ARM])


def differing_paths(runs: Sequence[ComparedRun]) -> list[str]:
    """List the parameters with several values among the runs that have them.

    An agent's parameter that equals that of ``agents._default`` in each run is not listed.
    """
    values: dict[str, set[str]] = {}
    independent: set[str] = set()
    for run in runs:
        for path, value in run.parameters.items():
            values.setdefault(path, set()).add(_plain(value))
            default = default_path(path)
            if default == path or value != run.parameters.get(default):
                independent.add(path)
    return sorted(path for path in independent if len(values[path]) > 1)


def _make_group(
    tasks: Mapping[Hashable, list[ComparedRun]],
    tasks_seen: Sequence[Hashable],
    paths: Sequence[str],
    task_paths: Sequence[str],
) -> Group:
    member = next(iter(tasks.values()))[0]
    label = _label(member, paths)
    for task in tasks_seen:
        seeds = [run.seed for run in tasks.get(task, [])]
        if not seeds:
            raise DataError(
                f"compare: {label} has no run for one of the {len(tasks_seen)} values of"
                f" {', '.join(task_paths)}; expected every group to have every task."
            )
        if len(set(seeds)) < len(seeds):
            raise DataError(f"compare: {label} has a seed twice: {sorted(seeds)}.")
    values = {path: member.parameters.get(path) for path in paths}
    return Group(label, values, [tasks[task] for task in tasks_seen])


def _label(run: ComparedRun, paths: Sequence[str]) -> str:
    """Label a run by its differing parameters; only the value if it is the only one and a name."""
    if not paths:
        return "all runs"
    if len(paths) == 1:
        value = run.parameters.get(paths[0])
        if isinstance(value, str):
            return show(value)
        return f"{paths[0].rpartition('.')[2]}={show(value)}"
    names = [path.rpartition(".")[2] for path in paths]
    return " · ".join(
        f"{path if names.count(name) > 1 else name}={show(run.parameters[path])}"
        for path, name in zip(paths, names, strict=True)
        if path in run.parameters
    )


def _values(run: ComparedRun, paths: Sequence[str]) -> Hashable:
    return tuple(_plain(run.parameters.get(path)) for path in paths)


def _plain(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
