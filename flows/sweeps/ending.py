"""What is told of a sweep when its members have been run."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.tracking_uri import choose_tracking_uri
from ratchet.errors import DataError, TrackingError
from ratchet.reports.sweep.standing import SweepStanding, read_standing
from ratchet.tracking.content import metric_key
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mlflow.sweep import BestMember
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from flows.sweeps.members import ResolvedSweep

logger = logging.getLogger(__name__)


def tell_mlflow(resolved: ResolvedSweep) -> None:
    """Bring the sweep's MLflow run up to how its members have ended."""
    settings = resolved.settings
    if not settings.tracking or "mlflow" not in settings.mirrors:
        return
    from ratchet.tracking.mlflow.mirror import MlflowMirror

    name = settings.experiment_name or resolved.name
    try:
        standing = read_standing(settings.runs, resolved.known_record())
        best = _best(standing, Path(settings.runs)) if standing.scored else None
        uri = choose_tracking_uri(settings.home, settings.tracking_uri)
        MlflowMirror(uri).sync_sweep(resolved.folder, name, best)
    except (TrackingError, DataError) as error:
        logger.warning(
            "sweep %s: %s Catch up with `ratchet sync RUN` of a member.", resolved.sweep_id, error
        )


def _best(standing: SweepStanding, runs: Path) -> BestMember:
    best = standing.scored[0]
    metrics: dict[str, float] = {}
    for point in RunFolder(runs / best.run_id).read_metrics():  # later ones over earlier ones
        if point.arm == MAIN_ARM:
            named = {metric_key(f"{point.stage}/{name}"): v for name, v in point.values.items()}
            metrics |= {name: value for name, value in named.items() if math.isfinite(value)}
    return BestMember(best.run_id, best.label, len(standing.scored), metrics)
