"""``SweepResults``: what the members of a sweep have come to, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.runs.result import ExperimentResult
from flows.sweeps.grid import describe_point
from ratchet.reports.shown_table import ShownTable

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table


class SweepResults(list[ExperimentResult]):
    """A list of results that can be shown; ``changes`` is what each member changes."""

    def __init__(
        self, results: Iterable[ExperimentResult], changes: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(results)
        self.changes = list(changes)

    @property
    def table(self) -> ShownTable:
        """The test results of all members, read from their folders."""
        from flows.runs.result_table import read_results
        from ratchet.tracking.run_folder import RunFolder

        rows, records = [], []
        for result, changes in zip(self, self.changes, strict=True):
            for found in read_results(RunFolder(result.folder)):
                rows.append((describe_point(dict(changes)) or result.run_id, *found.row))
                records.append({"run_id": result.run_id, **changes, **found.record})
        columns = ("changes", "arm", "tested on", "result", "95 % interval", "n")
        return ShownTable(f"Sweep of {len(self)} members", columns, rows, records)

    def to_dataframe(self) -> DataFrame:
        """Return all test results as a frame of pandas, with a column for each parameter."""
        return self.table.to_dataframe()

    def __rich__(self) -> Table:
        return self.table.__rich__()

    def _repr_html_(self) -> str:
        return self.table._repr_html_()
