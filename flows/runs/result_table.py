"""The table of a run's test results, from its folder: for terminals, notebooks and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.reports.shown_table import ShownTable

if TYPE_CHECKING:
    from ratchet.statistics.estimate import Estimate
    from ratchet.tracking.run_folder import RunFolder


@dataclass(frozen=True)
class TestedResult:
    """What an arm came to in a test: accuracy, an evaluator's metric or an agent's return."""

    arm: str
    test: str
    measure: str
    estimate: Estimate

    @property
    def record(self) -> dict[str, object]:
        """The result as plain data; the value and its 95 % interval are shares, not percent."""
        found = self.estimate
        return {
            "arm": self.arm,
            "test": self.test,
            "measure": self.measure,
            "value": found.value,
            "low": found.low,
            "high": found.high,
            "n": found.n,
        }

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """The result as texts: arm, dataset, result, 95 % interval, n."""
        from ratchet.reports.labels import number

        found = self.estimate
        if self.measure == "accuracy":
            interval = f"{100 * found.low:.1f} – {100 * found.high:.1f} %"
            return self.arm, self.test, f"{100 * found.value:.1f} %", interval, str(found.n)
        interval = f"{number(found.low)} – {number(found.high)}"
        return self.arm, self.test, f"{self.measure} {number(found.value)}", interval, str(found.n)


def read_results(folder: RunFolder) -> Iterator[TestedResult]:
    """Read what each arm came to: accuracy, the evaluator's metrics, and each agent's return.

    Returns are left out where decisions are counted.
    """
    from ratchet.statistics.results import accuracy
    from ratchet.statistics.returns import (
        agents_by_return,
        evaluator_metrics,
        has_decisions,
        mean_metric,
        mean_return,
    )

    for table in folder.read_tables():
        if has_decisions(table.columns):
            yield TestedResult(table.arm, table.name, "accuracy", accuracy(table.columns))
        for name in evaluator_metrics(table.columns):
            yield TestedResult(table.arm, table.name, name, mean_metric(table.columns, name))
        for agent in agents_by_return(table.columns):
            estimate = mean_return(table.columns, agent)
            yield TestedResult(table.arm, table.name, f"return of {agent}", estimate)


def result_table(folder: RunFolder) -> ShownTable:
    """Make the table of a run; without rows if nothing has been tested."""
    found = list(read_results(folder))
    what = "accuracy" if all(each.measure == "accuracy" for each in found) else "result"
    columns = ("arm", "tested on", what, "95 % interval", "n")
    title = f"Results of {folder.run_id}"
    return ShownTable(title, columns, [e.row for e in found], [e.record for e in found])


def test_results(folder: RunFolder) -> list[TestedResult]:
    """Return what each arm came to on the test set itself."""
    return [each for each in read_results(folder) if each.test == "test"]


def in_short(results: list[TestedResult]) -> str:
    """Write results in one line."""
    return ", ".join(f"{each.arm} {each.row[2]}" for each in results)
