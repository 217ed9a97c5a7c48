"""Results of a finished sweep: ``SweepResults`` for users, and the sweep's MLflow run."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.process.tracking_uri import choose_tracking_uri, export_mlflow_credentials
from flows.runs.result import ExperimentResult
from flows.sweeps.points import describe_point
from ratchet.errors import DataError, TrackingError
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.sweep.status import SweepStatus, read_status
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mirrors.mlflow.sweep import BestMember
from ratchet.tracking.mirrors.payload import metric_key
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

    from flows.sweeps.members import ResolvedSweep

logger = logging.getLogger(__name__)


class SweepResults(list[ExperimentResult]):
    """Results of the members in their order, with a table for display; ``changes`` per member."""

    def __init__(
        self, results: Iterable[ExperimentResult], changes: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(results)
        self.changes = list(changes)

    @property
    def table(self) -> DisplayTable:
        """Test results of all members, read from their run folders."""
        from flows.runs.result import columns_and_rows, read_results

        names, tests, records = [], [], []
        for result, changes in zip(self, self.changes, strict=True):
            for test in read_results(RunFolder(result.folder)):
                names.append(describe_point(dict(changes)) or result.run_id)
                tests.append(test)
                records.append({"run_id": result.run_id, **changes, **test.record})
        columns, rows = columns_and_rows(tests)
        named = [[name, *row] for name, row in zip(names, rows, strict=True)]
        return DisplayTable(f"Sweep of {len(self)} members", ["changes", *columns], named, records)

    def to_dataframe(self) -> DataFrame:
        """Return all test results as a pandas data frame with one column per parameter."""
        return self.table.to_dataframe()

    def __repr__(self) -> str:
        """Return the table of the members' tests."""
        return str(self.table)

    def __rich__(self) -> Table:
        return self.table.__rich__()

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def sync_mlflow(resolved: ResolvedSweep) -> None:
    """Update the sweep's MLflow run from the members' results."""
    settings = resolved.settings
    if not settings.tracking or "mlflow" not in settings.mirrors:
        return
    from ratchet.tracking.mirrors.mlflow.mirror import MlflowMirror

    name = settings.experiment_name or resolved.name
    try:
        status = read_status(settings.runs, resolved.known_record())
        best = _best(status, Path(settings.runs)) if status.scored else None
        export_mlflow_credentials(settings.home, settings.tracking_uri)
        uri = choose_tracking_uri(settings.home, settings.tracking_uri)
        MlflowMirror(uri).sync_sweep(resolved.folder, name, best)
    except (TrackingError, DataError) as error:
        logger.warning(
            "sweep %s: %s Catch up with `ratchet sync RUN` for any member.",
            resolved.sweep_id,
            error,
        )


def _best(status: SweepStatus, runs: Path) -> BestMember:
    best = status.scored[0]
    metrics: dict[str, float] = {}
    for point in RunFolder(runs / best.run_id).read_metrics():  # later values replace earlier ones
        if point.arm == MAIN_ARM:
            named = {metric_key(f"{point.stage}/{name}"): v for name, v in point.values.items()}
            metrics |= {name: value for name, value in named.items() if math.isfinite(value)}
    return BestMember(best.run_id, best.label, len(status.scored), metrics)
