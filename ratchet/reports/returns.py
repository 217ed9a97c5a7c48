"""Means in a report: evaluator metrics, and returns of tests without decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.reports.content import Arm
from ratchet.reports.labels import number
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.results import (
    METRIC_PREFIX,
    REWARD_PREFIX,
    Columns,
    agents_by_return,
    evaluator_metrics,
    mean_difference,
    mean_of,
    same_datapoints,
)
from ratchet.tracking.result_table import ResultTable


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
