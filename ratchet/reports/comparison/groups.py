"""What is compared with what: runs that differ in their seed alone are repetitions of one group.

Other parameters that differ tell groups apart, or tasks, over which a group is averaged.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.errors import DataError, ParameterError, nearest
from ratchet.reports.comparison.runs import ComparedRun
from ratchet.reports.tables import show

_ARM = "arm"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, task by task.

    ``values`` has what tells the group from the others, by dotted path.
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
        """The seeds that any task has."""
        return sorted({run.seed for run in self.runs})


@dataclass(frozen=True)
class Grouping:
    """All groups, by which parameters they differ, and the tasks they have in common."""

    paths: Sequence[str]
    groups: Sequence[Group]
    tasks: Sequence[str]

    @property
    def is_by_arm(self) -> bool:
        """Whether arms are the groups, whatever they differ in."""
        return list(self.paths) == [_ARM]


def group_runs(runs: Sequence[ComparedRun], task_paths: Sequence[str] = ()) -> Grouping:
    """Put runs into groups, in the order in which they are given.

    The parameters ``task_paths`` tell tasks apart rather than groups.

    Raises
    ------
    ParameterError
        If a task's parameter does not differ.
    DataError
        If a group lacks a task, or has a seed twice in one.
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
    """Take arms of one name for one group, in the order in which they are given.

    Raises
    ------
    DataError
        If the runs of an arm differ in more than their seed, or a seed comes twice.
    """
    by_arm: dict[str, list[ComparedRun]] = {}
    for run in runs:
        by_arm.setdefault(run.arm, []).append(run)
    for arm, own in by_arm.items():
        differing = differing_paths(own)
        seeds = [run.seed for run in own]
        if differing or len(set(seeds)) < len(seeds):
            what = ", ".join(differing) or f"nothing, and have the seeds {sorted(seeds)}"
            raise DataError(
                f"compare: the runs of arm {arm} differ in {what}; expected them to differ in"
                " their seed alone. Compare fewer runs, or leave --by-arm out."
            )
    groups = [Group(arm, {_ARM: arm}, [own]) for arm, own in by_arm.items()]
    return Grouping([_ARM], groups, [_ARM])


def differing_paths(runs: Sequence[ComparedRun]) -> list[str]:
    """List the parameters that have several values among the runs that have them at all."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for path, value in run.parameters.items():
            values.setdefault(path, set()).add(_plain(value))
    return sorted(path for path, seen in values.items() if len(seen) > 1)


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
    """Name what tells a run from others: the value alone where one parameter differs."""
    if not paths:
        return "all runs"
    if len(paths) == 1:
        return show(run.parameters.get(paths[0]))
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
