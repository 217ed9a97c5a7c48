"""``MemberReports``: has a member of a sweep stop where its sweep's pruner says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from flows.sweeps.study import SweepStudy
from ratchet.errors import RunPrunedError
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.metrics import MetricPoint


class MemberReports:
    """Reports what a finished stage has recorded, iteration by iteration.

    Decisions are of iterations, not of stages: they are the same however training is cut into
    stages, and whether those were made or found. A member stops behind the stage that ends with,
    or after, the iteration.
    """

    def __init__(self, study: SweepStudy, run_id: str) -> None:
        self._study, self._run_id = study, run_id

    @classmethod
    def of(cls, folder: Path, run_id: str) -> MemberReports | None:
        """Return who reports for a member of the sweep in a folder; None if nobody has to."""
        study = SweepStudy.read(folder)
        waiting = any(each.run_id == run_id and each.state is None for each in study.trials)
        return cls(study, run_id) if study.prunes and waiting else None

    def __call__(self, points: Sequence[MetricPoint]) -> None:
        """Report metrics of a stage.

        Raises
        ------
        RunPrunedError
            If the member is to stop.
        """
        stage, _, name = self._study.spec.metric.partition("/")
        for point in sorted(points, key=lambda each: each.iteration):
            if point.arm != MAIN_ARM or point.stage != stage or name not in point.values:
                continue
            value = float(point.values[name])
            finite = value if math.isfinite(value) else None
            if self._study.report(self._run_id, point.iteration, finite):
                raise RunPrunedError(
                    f"pruned after iteration {point.iteration + 1}: {stage}/{name} was {value:.4g}."
                )
