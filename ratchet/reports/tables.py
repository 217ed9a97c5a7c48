"""Tables of a report as rows of text; pure functions of its content."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.errors import ParameterError, UnknownNameError
from ratchet.parameters.base import TestGroups
from ratchet.parameters.test_groups import saved_test_groups
from ratchet.reports.content import Arm
from ratchet.reports.labels import number
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.results import (
    METRIC_PREFIX,
    REWARD_PREFIX,
    Columns,
    accuracy,
    accuracy_by,
    accuracy_difference,
    agents_by_return,
    evaluator_metrics,
    has_decisions,
    mean_difference,
    mean_of,
    same_datapoints,
)
from ratchet.tracking.manifest import StageRecord
from ratchet.tracking.mirrors.payload import flatten
from ratchet.tracking.result_table import ResultTable

NO_DECISION = 2
_UNSET: tuple[object, ...] = (None, (), [], {})
PRETRAINED = "pretrain-"
"""Prefix of the names of single agents' tables."""


@dataclass(frozen=True)
class EvaluatedArm:
    """An evaluated arm, or one of its pretrained agents; tables are by dataset.

    Every table and chart uses ``label``.
    """

    label: str
    who: str
    tables: Mapping[str, ResultTable]
    alone: bool = False


@dataclass(frozen=True)
class AccuracyRow:
    """Accuracy of one arm on one dataset; ``alone`` for a single pretrained agent.

    ``is_decided`` is False for tasks without a binary decision.
    """

    arm: str
    who: str
    dataset: str
    estimate: Estimate
    undecided: str
    rounds: str
    alone: bool
    color: int
    is_decided: bool = True


@dataclass(frozen=True)
class DifferenceRow:
    """Difference of the accuracies of two arms on one dataset."""

    first: str
    second: str
    dataset: str
    estimate: Estimate


@dataclass(frozen=True)
class GroupRow:
    """Accuracy on the datapoints of one group, a cell for each evaluated."""

    dataset: str
    value: int
    label: str
    cells: Sequence[Estimate | None]


@dataclass(frozen=True)
class StageSummary:
    """All stages of one kind of one arm."""

    arm: str
    stage: str
    iterations: int
    cached: int
    computed: int
    seconds: float


@dataclass(frozen=True)
class ParameterRow:
    """One hyper-parameter: its default and its value in each arm."""

    path: str
    default: str
    values: Sequence[str]
    differs: bool


def evaluated_arms(arms: Sequence[Arm]) -> list[EvaluatedArm]:
    """List the arms, then every single pretrained agent; indices are colours."""
    playing = [
        EvaluatedArm(
            arm.label,
            arm.description,
            {n: table for n, table in arm.tables.items() if not n.startswith(PRETRAINED)},
        )
        for arm in arms
    ]
    alone = [
        EvaluatedArm(
            f"{arm.label} · {name.removeprefix(PRETRAINED)} pretrained",
            "pretraining",
            {"test": table},
            alone=True,
        )
        for arm in arms
        for name, table in arm.tables.items()
        if name.startswith(PRETRAINED)
    ]
    return playing + alone


def accuracy_rows(arms: Sequence[Arm]) -> list[AccuracyRow]:
    """Return a row for every table of results: tests first, then single agents."""
    rows = [
        _accuracy_row(evaluated, name, color)
        for color, evaluated in enumerate(evaluated_arms(arms))
        for name, table in evaluated.tables.items()
        if len(table) and has_decisions(table.columns)
    ]
    return sorted(rows, key=lambda row: (row.alone, row.dataset != "test", row.dataset))


def difference_rows(arms: Sequence[Arm]) -> list[DifferenceRow]:
    """Compare the first arm with all others and with single agents, on each dataset."""
    if not arms:
        return []
    first, *others = evaluated_arms(arms)
    return [
        DifferenceRow(
            first.label, other.label, name, accuracy_difference(table.columns, rival.columns)
        )
        for name, table in first.tables.items()
        for other in others
        if (rival := other.tables.get(name)) is not None
        and has_decisions(table.columns)
        and has_decisions(rival.columns)
    ]


def group_tables(arms: Sequence[Arm]) -> list[tuple[TestGroups, list[GroupRow]]]:
    """Return the accuracy by group on every test set with groups, by kind of groups."""
    declared = {each.name: each for arm in arms for each in saved_test_groups(arm.hyper_params)}
    tables = [(groups, group_rows(arms, groups)) for groups in declared.values()]
    return [(groups, rows) for groups, rows in tables if rows]


def group_rows(arms: Sequence[Arm], groups: TestGroups) -> list[GroupRow]:
    """Return a row for each group of each test set, a cell for each evaluated."""
    by_dataset: dict[str, dict[int, dict[int, Estimate]]] = defaultdict(lambda: defaultdict(dict))
    all_arms = evaluated_arms(arms)
    for arm_index, evaluated in enumerate(all_arms):
        for name, table in evaluated.tables.items():
            if groups.column in table.columns:
                for value, estimate in accuracy_by(table.columns, groups.column).items():
                    assert isinstance(value, int)
                    by_dataset[name][value][arm_index] = estimate
    return [
        GroupRow(name, value, groups.label(value), [cells.get(k) for k in range(len(all_arms))])
        for name, values in sorted(by_dataset.items())
        for value, cells in sorted(values.items())
    ]


def stage_summaries(arms: Sequence[Arm]) -> list[StageSummary]:
    """Sum the stages up by arm and kind, in the order in which they ran."""
    groups: dict[tuple[str, str], list[StageRecord]] = defaultdict(list)
    iterations: dict[tuple[str, str], set[int]] = defaultdict(set)
    for arm in arms:
        for record in arm.stages:
            groups[arm.label, record.stage].append(record)
            iterations[arm.label, record.stage].update(record.iterations(arm.kind_of(record.stage)))
    return [
        StageSummary(
            arm,
            stage,
            len(iterations[arm, stage]),
            sum(record.hit for record in records),
            sum(not record.hit for record in records),
            sum(record.seconds for record in records),
        )
        for (arm, stage), records in groups.items()
    ]


def parameter_rows(arms: Sequence[Arm]) -> list[ParameterRow]:
    """Return every hyper-parameter with its default, those that differ from it first."""
    flats = [flatten(arm.hyper_params) for arm in arms]
    defaults = _defaults(arms)
    rows = []
    for path in dict.fromkeys(path for flat in flats for path in flat):
        default = defaults.get(default_path(path)) if defaults else None
        known = default_path(path) in defaults
        values = [show(flat[path]) if path in flat else "" for flat in flats]
        differs = any(path in flat and (not known or flat[path] != default) for flat in flats)
        rows.append(ParameterRow(path, show(default) if known else "", values, differs))
    return sorted(rows, key=lambda row: not row.differs)


def test_metric_rows(arms: Sequence[Arm]) -> list[tuple[str, list[str]]]:
    """Return the metrics of tests and evaluation suites: name, and the last value in each arm."""
    values_by_metric: dict[str, dict[int, float]] = defaultdict(dict)
    for arm_index, arm in enumerate(arms):
        for point in arm.points:
            if arm.kind_of(point.stage).is_test:
                for name, value in point.values.items():
                    values_by_metric[f"{point.stage}/{name}"][arm_index] = value
    return [
        (name, [show(cells[k]) if k in cells else "" for k in range(len(arms))])
        for name, cells in sorted(values_by_metric.items())
    ]


def num_iterations(arm: Arm) -> int:
    """Return the number of the arm's last recorded iteration."""
    return max((record.iteration for record in arm.stages), default=0)


def show(value: object) -> str:
    """Format a value: short numbers, plain words; mappings without unset values."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(show(item) for item in value) or "none"
    if isinstance(value, Mapping):
        parts = (f"{name}: {show(item)}" for name, item in value.items() if item not in _UNSET)
        return f"{{{', '.join(parts)}}}"
    return str(value)


def duration(seconds: float) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def _accuracy_row(evaluated: EvaluatedArm, name: str, color: int) -> AccuracyRow:
    table = evaluated.tables[name]
    columns = table.columns
    decisions = columns.get("decision", ())
    undecided = sum(decision == NO_DECISION for decision in decisions) / len(table)
    rounds = [number for number in columns.get("rounds", []) if number is not None]
    return AccuracyRow(
        evaluated.label,
        evaluated.who,
        name,
        accuracy(columns),
        f"{100 * undecided:.1f} %" if undecided else "none" if decisions else "",
        f"{math.fsum(rounds) / len(rounds):.1f}" if rounds and not evaluated.alone else "",
        evaluated.alone,
        color,
        bool(decisions),
    )


def _defaults(arms: Sequence[Arm]) -> dict[str, Any]:
    """Return the defaults of all hyper-parameters; empty if no arm's scenario is available."""
    from ratchet.parameters.hyper_parameters import HyperParameters

    for arm in arms:
        needed = {name: arm.hyper_params.get(name, "") for name in ("scenario", "trainer")}
        try:
            return flatten(HyperParameters(**needed, dataset="").to_dict()) | {
                "scenario": "",
                "trainer": "",
            }
        except (ParameterError, UnknownNameError):
            continue
    return {}


def default_path(path: str) -> str:
    """Map an agent's parameter path to that of ``_default``."""
    parts = path.split(".")
    if parts[0] == "agents" and len(parts) > 2:
        parts[1] = "_default"
    return ".".join(parts)


@dataclass(frozen=True)
class ReturnRow:
    """Mean of one measure of one arm on one dataset; ``color`` is the arm's index.

    ``measure`` is an evaluator's metric, or the "return of AGENT".
    """

    arm: str
    measure: str
    dataset: str
    estimate: Estimate
    text: str
    lowest: str
    highest: str
    steps: str
    color: int


@dataclass(frozen=True)
class ReturnDifference:
    """Difference of a measure's means between two arms."""

    first: str
    second: str
    measure: str
    dataset: str
    estimate: Estimate
    text: str


def return_rows(arms: Sequence[Arm]) -> list[ReturnRow]:
    """Return a row for every mean: metrics, then returns; tests first."""
    rows = [
        _row(arm.label, measure, column, name, table, color)
        for color, arm in enumerate(arms)
        for name, table in arm.tables.items()
        if len(table)
        for measure, column in _measures(table.columns).items()
    ]
    return sorted(rows, key=lambda row: (row.dataset != "test", row.dataset))


def return_difference_rows(arms: Sequence[Arm]) -> list[ReturnDifference]:
    """Compare the first arm's measures with those of the same name in every other arm."""
    rows = []
    for other in arms[1:]:
        for name, table in arms[0].tables.items():
            rival = other.tables.get(name)
            if rival is None or not (len(table) and same_datapoints(table.columns, rival.columns)):
                continue
            others = _measures(rival.columns)
            for measure, column in _measures(table.columns).items():
                if others.get(measure) == column:
                    estimate = mean_difference(table.columns, rival.columns, column)
                    labels = (arms[0].label, other.label)
                    rows.append(
                        ReturnDifference(*labels, measure, name, estimate, signed(estimate))
                    )
    return rows


def _measures(columns: Columns) -> dict[str, str]:
    """Map the measures that are results to their columns: metrics, then agents' returns."""
    metrics = {name: METRIC_PREFIX + name for name in evaluator_metrics(columns)}
    returns = {f"return of {agent}": REWARD_PREFIX + agent for agent in agents_by_return(columns)}
    return metrics | returns


def returns_headline(rows: Sequence[ReturnRow]) -> str:
    """Summarise the first arm's means in a sentence; return an empty string without tests.

    Evaluator metrics take precedence over returns.
    """
    tested = [row for row in rows if row.dataset == "test"]
    if not tested:
        return ""
    mine = [row for row in tested if row.arm == tested[0].arm]
    metrics = [row for row in mine if not row.measure.startswith("return of ")]
    headline_rows = metrics or mine
    episodes = f"{mine[0].estimate.n:,} test episodes"
    if len(headline_rows) == 1:
        (row,) = headline_rows
        what = f"a mean {row.measure}" if metrics else "a mean return"
        return f"“{row.arm}” reaches {what} of {row.text} in {episodes}."
    each = ", ".join(
        f"{row.measure.removeprefix('return of ')} {row.text}" for row in headline_rows
    )
    what = "means" if metrics else "mean returns"
    return f"“{mine[0].arm}” reaches these {what} in {episodes}: {each}."


def signed(estimate: Estimate) -> str:
    """Format a difference with its sign and interval."""
    plus = "+" if estimate.value > 0 else ""
    return f"{plus}{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def _row(
    arm: str, measure: str, column: str, name: str, table: ResultTable, color: int
) -> ReturnRow:
    columns = table.columns
    estimate = mean_of(columns, column)
    values = [value for value in columns[column] if value is not None]
    steps = [count for count in columns.get("rounds", ()) if count is not None]
    return ReturnRow(
        arm,
        measure,
        name,
        estimate,
        f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]",
        number(min(values)),
        number(max(values)),
        number(math.fsum(steps) / len(steps)) if steps else "",
        color,
    )
