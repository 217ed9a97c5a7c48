"""How groups learn: curves with bands, the areas under them, and when runs reach something."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.errors import DataError, nearest
from ratchet.reports.comparison.axes import AXES, AxisName, Spending, spending
from ratchet.reports.comparison.groups import Group
from ratchet.reports.comparison.options import Options
from ratchet.reports.comparison.runs import ComparedRun
from ratchet.statistics.aggregates import FloatArray, interquartile_mean
from ratchet.statistics.band import Band
from ratchet.statistics.curves import (
    RunCurve,
    common_positions,
    first_reached,
    learning_curve,
    mean_height,
)
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.reaching import Reaching, median_position
from ratchet.statistics.stratified import stratified_interval
from ratchet.tracking.metrics import MetricPoint

MAX_CURVES = 3
SCORES = tuple(
    re.compile(pattern)
    for pattern in (
        r"test_during_training/test_(\w+\.)?(accuracy|exact_match)$",
        r"(train|log_stats)/(\w+\.|rollout/)?(accuracy|exact_match)$",
        r"train/critic/score/mean$",
        r"train/episode_return$",
        r"(train|log_stats)/\w+\.mean_episode_reward$",
    )
)
"""What is drawn if nothing else is asked for: the first of these that all runs have."""
_SHARE = re.compile(r"accuracy|exact_match|_fraction$|_proportion$")

Curves = list[list[RunCurve]]


@dataclass(frozen=True)
class GroupCurve:
    """How the runs of one group learn.

    Attributes
    ----------
    band
        The interquartile mean with its interval, as far as all runs go.
    ends
        Where each run ends.
    area
        The mean height of the curves between the two positions that all runs of all groups cover,
        averaged; None where there are no two.
    reaching
        For each threshold, when runs are there.
    """

    group: Group
    band: Band
    ends: Sequence[float]
    area: Estimate | None
    reaching: Sequence[Reaching]

    @property
    def cut_off(self) -> int:
        """How many runs go on after the curve has ended, since another has."""
        return sum(end > min(self.ends) for end in self.ends)


@dataclass(frozen=True)
class LearningComparison:
    """All groups' curves of one metric over one axis; more counts as better.

    ``start`` and ``end`` are what the areas lie between; None where no two positions are common.
    """

    metric: str
    axis: AxisName
    rows: Sequence[GroupCurve]
    thresholds: Sequence[float]
    start: float | None
    end: float | None

    @property
    def is_share(self) -> bool:
        """Whether values are shares, to be shown in percent."""
        return _SHARE.search(self.metric) is not None

    @property
    def is_accuracy(self) -> bool:
        """Whether values are accuracies, which known ones can stand beside."""
        return self.metric.endswith("accuracy")


def compare_learning(
    groups: Sequence[Group],
    options: Options,
    *,
    metrics: Sequence[str] = (),
    axis: AxisName | None = None,
    reach: Sequence[float] = (),
) -> list[LearningComparison]:
    """Compare how groups learn.

    Parameters
    ----------
    metrics
        ``STAGE/NAME`` of what is recorded in several iterations; if none is given, accuracies,
        else scores or rewards that all runs have.
    axis
        What a curve goes over; if none is given frames, tokens or iterations, whichever all runs
        have first, and iterations too if they tell something else.
    reach
        Which thresholds to wait for; if none is given, what the weakest group ends at.

    Raises
    ------
    DataError
        If a run lacks a metric or an axis that was asked for.
    """
    runs = [run for group in groups for run in group.runs]
    names = [_known(name, runs) for name in metrics] or _chosen(runs)
    axes = _Axes(runs)
    chosen = [axes.check(axis)] if axis is not None else axes.choose()
    found = [
        _compare(groups, metric, over, axes, options, reach) for metric in names for over in chosen
    ]
    return [each for each in found if any(len(row.band) > 1 for row in each.rows)]


def _compare(
    groups: Sequence[Group],
    metric: str,
    axis: AxisName,
    axes: _Axes,
    options: Options,
    reach: Sequence[float],
) -> LearningComparison:
    curves = [
        [[_curve(run, metric, axis, axes) for run in task] for task in g.tasks] for g in groups
    ]
    every = [curve for group in curves for task in group for curve in task]
    positions = common_positions(every)
    bands = [
        learning_curve(
            own, positions, interquartile_mean,
            level=options.level, method=options.method, seed=options.seed,
        )
        for own in curves
    ]  # fmt: skip
    start, end = max(curve.start for curve in every), min(curve.end for curve in every)
    thresholds = list(reach) or _reached_by_all(bands)
    rows = [
        GroupCurve(
            group,
            band,
            [curve.end for task in own for curve in task],
            _area(own, start, end, options) if start < end else None,
            [_reaching(own, threshold, positions, options) for threshold in thresholds],
        )
        for group, own, band in zip(groups, curves, bands, strict=True)
    ]
    covered = (start, end) if start < end else (None, None)
    return LearningComparison(metric, axis, rows, thresholds, *covered)


def _curve(run: ComparedRun, metric: str, axis: AxisName, axes: _Axes) -> RunCurve:
    stage, _, name = metric.partition("/")
    points = [point for point in run.points if point.stage == stage and name in point.values]
    at = axes.positions(run, axis, points)
    try:
        return RunCurve.of([(x, p.values[name]) for x, p in zip(at, points, strict=True)])
    except DataError as error:
        raise DataError(f"compare: {metric!r} of {run.label}: {error}") from error


def _area(curves: Curves, start: float, end: float, options: Options) -> Estimate:
    return stratified_interval(
        [[mean_height(curve, start, end) for curve in task] for task in curves],
        interquartile_mean,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        seed=options.seed,
    )


def _reached_by_all(bands: Sequence[Band]) -> list[float]:
    """Return what the group that ends lowest ends at."""
    return [min(band.values[-1] for band in bands)] if all(map(len, bands)) else []


def _reaching(
    curves: Curves, threshold: float, positions: FloatArray, options: Options
) -> Reaching:
    found = [first_reached(curve, threshold, positions) for task in curves for curve in task]
    at, reached = [position for position, _ in found], [is_there for _, is_there in found]
    return Reaching(threshold, at, reached, median_position(at, reached, options.level))


def _names(run: ComparedRun) -> set[str]:
    """List what a run has recorded for more than one iteration."""
    shapes = Counter((point.stage, tuple(point.values)) for point in run.points)
    counts: Counter[str] = Counter()
    for (stage, names), count in shapes.items():
        counts.update({f"{stage}/{name}": count for name in names})
    return {name for name, count in counts.items() if count > 1}


def _known(metric: str, runs: Sequence[ComparedRun]) -> str:
    for run in runs:
        names = _names(run)
        if metric not in names:
            raise DataError(
                f"compare: {run.label} has no curve of {metric!r}, expected STAGE/NAME of what it"
                f" records in several iterations.{nearest(metric, names)}"
            )
    return metric


def _chosen(runs: Sequence[ComparedRun]) -> list[str]:
    shared = sorted(set.intersection(*map(_names, runs)))
    for pattern in SCORES:
        fitting = [name for name in shared if pattern.match(name)]
        if fitting:
            return fitting[:MAX_CURVES]
    return []


class _Axes:
    """What the runs of a comparison had spent when; each is read once."""

    def __init__(self, runs: Sequence[ComparedRun]) -> None:
        self._runs = runs
        self._found: dict[tuple[str, AxisName], Spending | None] = {}

    def positions(
        self, run: ComparedRun, axis: AxisName, points: Sequence[MetricPoint]
    ) -> list[float]:
        """Return what a run had spent when points were measured; iterations as they are counted."""
        spent = self._spending(run, axis)
        return [float(p.iteration) for p in points] if spent is None else spent.at(points)

    def check(self, axis: AxisName) -> AxisName:
        """Return an axis, or say which runs have not recorded it."""
        lacking = [run.label for run in self._runs if not self._has(run, axis)]
        if not lacking:
            return axis
        others = [each for each in AXES if all(self._has(run, each) for run in self._runs)]
        raise DataError(
            f"compare: {len(lacking)} of {len(self._runs)} runs have not recorded {axis}"
            f" ({lacking[0]}); expected one of {', '.join(others)} for these."
        )

    def choose(self) -> list[AxisName]:
        """Return the first axis that all have, and iterations if that is not the same scaled."""
        first = next(axis for axis in AXES if all(self._has(run, axis) for run in self._runs))
        if first == "iterations" or self._is_proportional(first):
            return [first]
        return [first, "iterations"]

    def _has(self, run: ComparedRun, axis: AxisName) -> bool:
        return axis == "iterations" or self._spending(run, axis) is not None

    def _spending(self, run: ComparedRun, axis: AxisName) -> Spending | None:
        if axis == "iterations":
            return None
        place = (run.label, axis)
        if place not in self._found:
            self._found[place] = spending(run, axis)
        return self._found[place]

    def _is_proportional(self, axis: AxisName) -> bool:
        """Return whether all runs spend the same in each iteration."""
        found = [self._spending(run, axis) for run in self._runs]
        amounts = np.concatenate([each.amounts for each in found if each is not None])
        return bool(np.ptp(amounts) <= 1e-6 * amounts.max())
