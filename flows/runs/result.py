"""``ExperimentResult``: what an experiment has come to. Plain data, so that Prefect can keep it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

    from ratchet.reports.shown_table import ShownTable
    from ratchet.tracking.run_folder import RunFolder

TESTED_STAGES = ("test", "suite")


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment has come to.

    Attributes
    ----------
    metrics
        Arm → name of a test ("test", "test-NAME") → its metrics.
    states
        Arm → key of its final state in the store; arms without one are left out.
    made, found
        The numbers of stages that this flow run made, and that it found in the store.
    flow_run_id
        The Prefect flow run's.
    """

    run_id: str
    folder: str
    metrics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    made: int = 0
    found: int = 0
    flow_run_id: str | None = None

    @property
    def report(self) -> Path:
        """The file of the report."""
        return Path(self.folder) / "report.html"

    @property
    def table(self) -> ShownTable:
        """The test results with their intervals, read from the run's folder."""
        from flows.runs.result_table import result_table
        from ratchet.tracking.run_folder import RunFolder

        return result_table(RunFolder(self.folder))

    def to_dataframe(self) -> DataFrame:
        """Return the test results as a frame of pandas, a row for each arm and test."""
        frame = self.table.to_dataframe()
        frame.insert(0, "run_id", self.run_id)
        return frame

    def __rich__(self) -> Table:
        return self.table.__rich__()

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    @classmethod
    def from_folder(cls, folder: RunFolder) -> Self:
        """Make a result of what a run has recorded, without the keys of its states."""
        metrics: dict[str, dict[str, dict[str, float]]] = {}
        for point in folder.read_metrics():
            if point.stage.partition("-")[0] in TESTED_STAGES:
                metrics.setdefault(point.arm, {})[point.stage] = dict(point.values)
        return cls(folder.run_id, str(folder.path), metrics)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make a result of what :meth:`to_dict` returned."""
        return cls(**data)
