"""The part of a report on mean returns: of tests in which nothing is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.reports.content import Arm
from ratchet.reports.labels import number
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.results import same_datapoints
from ratchet.statistics.returns import PREFIX, agents_by_return, mean_return, return_difference
from ratchet.tracking.result_table import ResultTable


@dataclass(frozen=True)
class ReturnRow:
    """Mean return of one agent of one arm on one dataset; ``color`` is the arm's place."""

    arm: str
    agent: str
    dataset: str
    estimate: Estimate
    text: str
    lowest: str
    highest: str
    steps: str
    color: int


@dataclass(frozen=True)
class ReturnDifference:
    """How much larger an agent's mean return is in one arm than in another."""

    first: str
    second: str
    agent: str
    dataset: str
    estimate: Estimate
    text: str


def return_rows(arms: Sequence[Arm]) -> list[ReturnRow]:
    """Return a row for every agent whose mean return is a result, tests first."""
    rows = [
        _row(arm.label, agent, name, table, color)
        for color, arm in enumerate(arms)
        for name, table in arm.tables.items()
        if len(table)
        for agent in agents_by_return(table.columns)
    ]
    return sorted(rows, key=lambda row: (row.dataset != "test", row.dataset))


def return_difference_rows(arms: Sequence[Arm]) -> list[ReturnDifference]:
    """Compare the first arm's agents with those of the same name in every other arm."""
    rows = []
    for other in arms[1:]:
        for name, table in arms[0].tables.items():
            rival = other.tables.get(name)
            if rival is None or not (len(table) and same_datapoints(table.columns, rival.columns)):
                continue
            for agent in agents_by_return(table.columns):
                if agent in agents_by_return(rival.columns):
                    found = return_difference(table.columns, rival.columns, agent)
                    labels = (arms[0].label, other.label)
                    rows.append(ReturnDifference(*labels, agent, name, found, signed(found)))
    return rows


def returns_headline(rows: Sequence[ReturnRow]) -> str:
    """Return what the first arm's agents reached in a sentence, or nothing without a test."""
    tested = [row for row in rows if row.dataset == "test"]
    if not tested:
        return ""
    mine = [row for row in tested if row.arm == tested[0].arm]
    episodes = f"{mine[0].estimate.n:,} test episodes"
    if len(mine) == 1:
        return f"“{mine[0].arm}” reaches a mean return of {mine[0].text} in {episodes}."
    each = ", ".join(f"{row.agent} {row.text}" for row in mine)
    return f"“{mine[0].arm}” reaches these mean returns in {episodes}: {each}."


def signed(estimate: Estimate) -> str:
    """Write a difference with its sign and interval."""
    plus = "+" if estimate.value > 0 else ""
    return f"{plus}{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def _row(arm: str, agent: str, name: str, table: ResultTable, color: int) -> ReturnRow:
    columns = table.columns
    found = mean_return(columns, agent)
    values = columns[PREFIX + agent]
    steps = [count for count in columns.get("rounds", ()) if count is not None]
    return ReturnRow(
        arm,
        agent,
        name,
        found,
        f"{number(found.value)} [{number(found.low)}, {number(found.high)}]",
        number(min(values)),
        number(max(values)),
        number(math.fsum(steps) / len(steps)) if steps else "",
        color,
    )
