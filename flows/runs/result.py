"""``ExperimentResult``: results of an experiment as plain data, and the table of its tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ratchet.reports.display_table import DisplayTable
from ratchet.tracking.stage_kinds import kind_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

    from ratchet.statistics.estimate import Estimate
    from ratchet.tracking.run_folder import RunFolder


@dataclass(frozen=True)
class ExperimentResult:
    """Results of an experiment.

    Attributes
    ----------
    metrics
        Arm → name of a test ("test", "test-NAME") → its metrics.
    states
        Arm → key of its final state in the store; arms without a final state are omitted.
    computed, cached
        Numbers of stages that this flow run computed, and that were cached.
    shared
        The number of cached stages that another arm of this flow run computed.
    flow_run_id
        Id of the Prefect flow run.
    """

    run_id: str
    folder: str
    metrics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    computed: int = 0
    cached: int = 0
    shared: int = 0
    flow_run_id: str | None = None

    @property
    def report(self) -> Path:
        """Path of the report."""
        return Path(self.folder) / "report.html"

    @property
    def stage_counts(self) -> str:
        """The numbers of stages, e.g. "9 computed, 1 shared between arms, 20 cached"."""
        parts = [f"{self.computed} computed"]
        if self.shared:
            parts.append(f"{self.shared} shared between arms")
        if self.cached > self.shared or not self.shared:
            parts.append(f"{self.cached - self.shared} cached")
        return ", ".join(parts)

    @property
    def table(self) -> DisplayTable:
        """Test results with their intervals, read from the run's folder."""
        from ratchet.tracking.run_folder import RunFolder

        return result_table(RunFolder(self.folder))

    def to_dataframe(self) -> DataFrame:
        """Return the test results as a pandas frame, a row for each arm and test."""
        frame = self.table.to_dataframe()
        frame.insert(0, "run_id", self.run_id)
        return frame

    def __repr__(self) -> str:
        """Return the table of tests, if its folder exists, below the numbers of stages."""
        stages = f"{self.computed} stages computed, {self.cached} cached"
        head = f"Run {self.run_id}: {stages}, folder {self.folder}"
        has_table = (Path(self.folder) / "manifest.json").exists() and self.table.rows
        return f"{head}\n{self.table}" if has_table else head

    def __rich__(self) -> Table:
        return self.table.__rich__()

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    @classmethod
    def from_folder(cls, folder: RunFolder) -> Self:
        """Read the result from a run's folder, without the keys of its states."""
        metrics: dict[str, dict[str, dict[str, float]]] = {}
        kinds = folder.manifest.kinds
        for point in folder.read_metrics():
            if kind_of(point.stage, kinds).is_test:
                metrics.setdefault(point.arm, {})[point.stage] = dict(point.values)
        return cls(folder.run_id, str(folder.path), metrics)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the result whose :meth:`to_dict` returned the data."""
        return cls(**data)


@dataclass(frozen=True)
class TestedResult:
    """Result of an arm in a test: accuracy, an evaluator's metric or an agent's return."""

    arm: str
    test: str
    measure: str
    estimate: Estimate

    @property
    def record(self) -> dict[str, object]:
        """The result as plain data; the value and its 95 % interval are fractions, not percent."""
        return {
            "arm": self.arm,
            "test": self.test,
            "measure": self.measure,
            "value": self.estimate.value,
            "low": self.estimate.low,
            "high": self.estimate.high,
            "n": self.estimate.n,
        }

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """The result as text: arm, dataset, result, 95 % interval, n."""
        from ratchet.reports.labels import number

        estimate = self.estimate
        if self.measure == "accuracy":
            interval = f"{100 * estimate.low:.1f} – {100 * estimate.high:.1f} %"
            return self.arm, self.test, f"{100 * estimate.value:.1f} %", interval, str(estimate.n)
        interval = f"{number(estimate.low)} – {number(estimate.high)}"
        return (
            self.arm,
            self.test,
            f"{self.measure} {number(estimate.value)}",
            interval,
            str(estimate.n),
        )


def read_results(folder: RunFolder) -> Iterator[TestedResult]:
    """Read the results of each arm: accuracy, the evaluator's metrics, and each agent's return.

    Returns are omitted for tests with decisions.
    """
    from ratchet.statistics.results import (
        accuracy,
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


def result_table(folder: RunFolder) -> DisplayTable:
    """Return the table of a run's test results; without rows if the run has no tests."""
    results = list(read_results(folder))
    columns, rows = columns_and_rows(results)
    return DisplayTable(
        f"Results of {folder.run_id}", columns, rows, [each.record for each in results]
    )


def columns_and_rows(results: Sequence[TestedResult]) -> tuple[list[str], list[list[str]]]:
    """Return results as a table's columns and rows; accuracies are named next to other measures."""
    is_accuracy = all(each.measure == "accuracy" for each in results)
    columns = ["arm", "tested on", "accuracy" if is_accuracy else "result", "95 % interval", "n"]
    rows = [list(each.row) for each in results]
    for each, row in zip(results, rows, strict=True):
        if each.measure == "accuracy" and not is_accuracy:
            row[2] = f"accuracy {row[2]}"
    return columns, rows


def test_results(folder: RunFolder) -> list[TestedResult]:
    """Return the results of each arm on the test set."""
    return [each for each in read_results(folder) if each.test == "test"]


def summary_line(results: list[TestedResult]) -> str:
    """Return results as one line of text."""
    return ", ".join(f"{each.arm} {each.row[2]}" for each in results)
