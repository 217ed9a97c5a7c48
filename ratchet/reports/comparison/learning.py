"""Learning curves of groups over iterations, frames, tokens or calls; areas; thresholds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ratchet.errors import DataError, nearest
from ratchet.reports.comparison.formatting import is_share
from ratchet.reports.comparison.options import (
    Options,
    band_with_enough_seeds,
    with_enough_seeds,
)
from ratchet.reports.comparison.runs import ComparedRun, Group
from ratchet.reports.comparison.training_costs import CumulativeCost, cumulative_cost
from ratchet.statistics.curves import (
    RunCurve,
    TimeToThreshold,
    common_positions,
    first_reached,
    learning_curve,
    mean_height,
    median_position,
)
from ratchet.statistics.estimate import Band, Estimate
from ratchet.statistics.stratified import FloatArray, interquartile_mean, stratified_interval
from ratchet.tracking.metrics import MetricPoint

AxisName = Literal["frames", "tokens", "calls", "iterations", "sampled_tokens"]
AXES: tuple[AxisName, ...] = get_args(AxisName)
"""In order of preference: the fairest basis of comparison first."""

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
"""Default metrics: the first pattern that matches a metric of all runs."""

Curves = list[list[RunCurve]]


@dataclass(frozen=True)
class GroupCurve:
    """Learning curve of one group.

    Attributes
    ----------
    band
        The interquartile mean with its interval, up to the first run's end.
    ends
        Last position of each run.
    area
        Interquartile mean of the runs' mean heights between two positions that all runs of all
        groups cover; None without such positions.
    reaching
        For each threshold, the positions at which runs reach it.
    """

    group: Group
    band: Band
    ends: Sequence[float]
    area: Estimate | None
    reaching: Sequence[TimeToThreshold]

    @property
    def cut_off(self) -> int:
        """Number of runs that continue after the end of the curve."""
        return sum(end > min(self.ends) for end in self.ends)


@dataclass(frozen=True)
class LearningComparison:
    """All groups' curves of one metric over one axis; higher is better.

    ``start`` and ``end`` are the limits of the areas; None without common positions.
    """

    metric: str
    axis: AxisName
    rows: Sequence[GroupCurve]
    thresholds: Sequence[float]
    start: float | None
    end: float | None

    @property
    def is_share(self) -> bool:
        """Whether values are shares, displayed in percent."""
        return is_share(self.metric)

    @property
    def is_accuracy(self) -> bool:
        """Whether values are accuracies, comparable with reference values."""
        return self.metric.endswith("accuracy")


def compare_learning(
    groups: Sequence[Group],
    options: Options,
    *,
    metrics: Sequence[str] = (),
    axis: AxisName | None = None,
    reach: Sequence[float] = (),
) -> list[LearningComparison]:
    """Compare the learning curves of groups.

    Parameters
    ----------
    metrics
        ``STAGE/NAME`` of metrics recorded in several iterations; default: accuracies, else scores
        or rewards, that all runs have.
    axis
        X axis; default: the first of frames, tokens, calls and iterations that all runs record,
        and iterations too if they are not proportional to it.
    reach
        Thresholds; default: the last value of the weakest group.
    """
    runs = [run for group in groups for run in group.runs]
    names = [_known(name, runs) for name in metrics] or _chosen(runs)
    axes = _Axes(runs)
    chosen = [axes.check(axis)] if axis is not None else axes.choose()
    comparisons = [
        _compare(groups, metric, over, axes, options, reach) for metric in names for over in chosen
    ]
    return [each for each in comparisons if any(len(row.band) > 1 for row in each.rows)]


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
    bands = [_band(group_curves, positions, options) for group_curves in curves]
    start, end = max(curve.start for curve in every), min(curve.end for curve in every)
    thresholds = list(reach)
    if not thresholds and all(map(len, bands)):
        thresholds = [min(band.values[-1] for band in bands)]  # reached by all groups
    rows = [
        GroupCurve(
            group,
            band,
            [curve.end for task in group_curves for curve in task],
            _area(group_curves, start, end, options) if start < end else None,
            [_reaching(group_curves, threshold, positions, options) for threshold in thresholds],
        )
        for group, group_curves, band in zip(groups, curves, bands, strict=True)
    ]
    covered = (start, end) if start < end else (None, None)
    return LearningComparison(metric, axis, rows, thresholds, *covered)


def _curve(run: ComparedRun, metric: str, axis: AxisName, axes: _Axes) -> RunCurve:
    stage, _, name = metric.partition("/")
    points = [point for point in run.points if point.stage == stage and name in point.values]
    at = axes.positions(run, axis, points)
    try:
        return RunCurve.from_points([(x, p.values[name]) for x, p in zip(at, points, strict=True)])
    except DataError as error:
        raise DataError(f"compare: {metric!r} of {run.label}: {error}") from error


def _band(curves: Curves, positions: FloatArray, options: Options) -> Band:
    band = learning_curve(
        curves,
        positions,
        interquartile_mean,
        level=options.level,
        method=options.method,
        seed=options.seed,
    )
    return band_with_enough_seeds(band, list(map(len, curves)))


def _area(curves: Curves, start: float, end: float, options: Options) -> Estimate:
    area = stratified_interval(
        [[mean_height(curve, start, end) for curve in task] for task in curves],
        interquartile_mean,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        seed=options.seed,
    )
    return with_enough_seeds(area, list(map(len, curves)))


def _reaching(
    curves: Curves, threshold: float, positions: FloatArray, options: Options
) -> TimeToThreshold:
    first_crossings = [
        first_reached(curve, threshold, positions) for task in curves for curve in task
    ]
    at, reached = (
        [position for position, _ in first_crossings],
        [is_there for _, is_there in first_crossings],
    )
    median = median_position(at, reached, options.level)
    return TimeToThreshold(
        threshold, at, reached, with_enough_seeds(median, list(map(len, curves)))
    )


def _names(run: ComparedRun) -> set[str]:
    """List the metrics that a run recorded in more than one iteration."""
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
                f"compare: {run.label} has no curve of {metric!r}, expected STAGE/NAME of a"
                f" metric recorded in several iterations.{nearest(metric, names)}"
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
    """Cumulative costs of a comparison's runs, each computed once."""

    def __init__(self, runs: Sequence[ComparedRun]) -> None:
        self._runs = runs
        self._costs: dict[tuple[str, AxisName], CumulativeCost | None] = {}

    def positions(
        self, run: ComparedRun, axis: AxisName, points: Sequence[MetricPoint]
    ) -> list[float]:
        """Return the positions of points on an axis."""
        spent = self._cumulative_cost(run, axis)
        return [float(p.iteration) for p in points] if spent is None else spent.at(points)

    def check(self, axis: AxisName) -> AxisName:
        """Return an axis if all runs recorded it; raise DataError otherwise."""
        lacking = [run.label for run in self._runs if not self._has(run, axis)]
        if not lacking:
            return axis
        others = [each for each in AXES if all(self._has(run, each) for run in self._runs)]
        raise DataError(
            f"compare: {len(lacking)} of {len(self._runs)} runs have not recorded {axis}"
            f" ({lacking[0]}); expected one of {', '.join(others)} for these."
        )

    def choose(self) -> list[AxisName]:
        """Return the first common axis, and iterations unless proportional to it."""
        first = next(axis for axis in AXES if all(self._has(run, axis) for run in self._runs))
        if first == "iterations" or self._is_proportional(first):
            return [first]
        return [first, "iterations"]

    def _has(self, run: ComparedRun, axis: AxisName) -> bool:
        return axis == "iterations" or self._cumulative_cost(run, axis) is not None

    def _cumulative_cost(self, run: ComparedRun, axis: AxisName) -> CumulativeCost | None:
        if axis == "iterations":
            return None
        run_and_axis = (run.label, axis)
        if run_and_axis not in self._costs:
            self._costs[run_and_axis] = cumulative_cost(run, axis)
        return self._costs[run_and_axis]

    def _is_proportional(self, axis: AxisName) -> bool:
        """Return whether all runs use equal amounts in each iteration."""
        costs = [self._cumulative_cost(run, axis) for run in self._runs]
        amounts = np.concatenate([each.amounts for each in costs if each is not None])
        return bool(np.ptp(amounts) <= 1e-6 * amounts.max())
