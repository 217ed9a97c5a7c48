"""Learning curves over several runs: aggregation with a band, areas, time to a threshold.

A position is the cost at which a value was measured: iterations, frames, tokens or calls. Runs
may end at different positions and are never extrapolated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.estimate import Band, Estimate
from ratchet.statistics.intervals import normal_quantile
from ratchet.statistics.stratified import (
    NO_INTERVAL,
    Aggregate,
    FloatArray,
    IntervalMethod,
    draw_runs,
    method_label,
    quantile_levels,
)

MAX_POSITIONS = 40
NUM_RESAMPLES = 1_000
_MAX_ELEMENTS = 4_000_000


@dataclass(frozen=True)
class RunCurve:
    """Values [K] of one run at ascending positions [K]; K >= 1."""

    positions: FloatArray
    values: FloatArray

    @classmethod
    def from_points(cls, points: Sequence[tuple[float, float]]) -> RunCurve:
        """Build a curve from (position, value) pairs in any order; non-finite values are skipped.

        Values at the same position are averaged.

        Raises
        ------
        DataError
            If no finite value remains.
        """
        pairs = np.asarray(points, dtype=np.float64).reshape(-1, 2)
        pairs = pairs[np.isfinite(pairs).all(axis=1)]
        if not len(pairs):
            raise DataError("a learning curve: got no finite value, expected at least one.")
        positions, inverse = np.unique(pairs[:, 0], return_inverse=True)
        return cls(positions, np.bincount(inverse, pairs[:, 1]) / np.bincount(inverse))

    @property
    def start(self) -> float:
        """The first position."""
        return float(self.positions[0])

    @property
    def end(self) -> float:
        """The last position."""
        return float(self.positions[-1])


def common_positions(curves: Sequence[RunCurve], max_positions: int = MAX_POSITIONS) -> FloatArray:
    """Return ``max_positions`` positions or fewer, as dense as the runs' values, up to the last."""
    every = np.unique(np.concatenate([curve.positions for curve in curves]))
    step = math.ceil(len(every) / max_positions)
    indices = np.arange(step - 1, len(every), step)
    if indices[-1] != len(every) - 1:
        indices = np.append(indices[: max_positions - 1], len(every) - 1)
    result: FloatArray = every[indices]
    return result


def values_at(curve: RunCurve, positions: FloatArray) -> FloatArray:
    """Return a run's mean since the previous position, at each position [S].

    Interpolated where an interval has no value; NaN before the run's first and after its last.
    """
    indices = np.searchsorted(positions, curve.positions)
    inside = indices < len(positions)
    sums = np.bincount(indices[inside], curve.values[inside], minlength=len(positions))
    counts = np.bincount(indices[inside], minlength=len(positions))
    values = np.interp(positions, curve.positions, curve.values)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), values)
    covered = (positions >= curve.start) & (positions <= curve.end)
    return np.where(covered, means, np.nan)


def learning_curve(
    tasks: Sequence[Sequence[RunCurve]],
    positions: FloatArray,
    aggregate: Aggregate,
    *,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Band:
    """Aggregate the runs of all tasks at each position that every run covers.

    Complete runs are resampled within their task. The curve ends where the first run ends.

    Parameters
    ----------
    level, method, num_resamples, seed
        As in :func:`ratchet.statistics.stratified_interval`.

    Returns
    -------
    Band
        At the positions that all runs cover; possibly empty.
    """
    values_of_tasks = [np.stack([values_at(curve, positions) for curve in task]) for task in tasks]
    shared = np.isfinite(np.concatenate(values_of_tasks)).all(axis=0)
    shared_values, where = [values[:, shared] for values in values_of_tasks], positions[shared]
    sizes = [len(values) for values in shared_values]
    runs = np.concatenate(shared_values)
    values = aggregate(runs.T)
    if min(sizes) < 2 or not len(where):
        nothing = [math.nan] * len(where)
        label = NO_INTERVAL if min(sizes) < 2 else method_label(method)
        return Band(where.tolist(), values.tolist(), nothing, nothing, len(runs), level, label)
    draws = draw_runs(shared_values, num_resamples, np.random.default_rng(seed))
    starts = np.cumsum([0, *sizes[:-1]])
    rows = np.concatenate([draw + first for draw, first in zip(draws, starts, strict=True)], axis=1)
    levels = quantile_levels(method, level, sizes)
    step = max(1, _MAX_ELEMENTS // rows.size)
    ends = [
        np.quantile(aggregate(runs.T[start : start + step][:, rows]), levels, axis=1)
        for start in range(0, len(where), step)
    ]
    lows, highs = np.concatenate(ends, axis=1).tolist()
    return Band(
        where.tolist(), values.tolist(), lows, highs, len(runs), level, method_label(method)
    )


def mean_height(curve: RunCurve, start: float, end: float) -> float:
    """Return the area under a run's curve between two positions, divided by their distance.

    The curve is interpolated linearly and must cover both positions.

    Raises
    ------
    DataError
        If it does not cover them, or start >= end.
    """
    if not curve.start <= start < end <= curve.end:
        raise DataError(
            f"the area under a curve from {curve.start:g} to {curve.end:g}: got the limits"
            f" {start:g} and {end:g}, expected start < end within that range."
        )
    inside = (curve.positions > start) & (curve.positions < end)
    xs = np.concatenate([[start], curve.positions[inside], [end]])
    ys = np.interp(xs, curve.positions, curve.values)
    return float(np.trapezoid(ys, xs) / (end - start))


def first_reached(
    curve: RunCurve, threshold: float, positions: FloatArray | None = None
) -> tuple[float, bool]:
    """Return a run's first position at or above a threshold and True; else its end and False.

    Evaluated at ``positions``, on the mean since the previous one, so that a single lucky value
    among many is not enough.
    """
    grid = curve.positions if positions is None else positions
    values = values_at(curve, grid)
    indices = np.flatnonzero(np.isfinite(values) & (values >= threshold))
    return (float(grid[indices[0]]), True) if len(indices) else (curve.end, False)


METHOD = "Kaplan–Meier (log-log)"


@dataclass(frozen=True)
class TimeToThreshold:
    """Position at which each run reached a threshold.

    Attributes
    ----------
    positions
        Each run's position at the threshold, or its end.
    reached
        Per run: whether it reached the threshold. Other runs are censored.
    median
        Position by which half of all runs reached it, with an interval; the value or a bound is
        infinite if the runs do not determine it.
    """

    threshold: float
    positions: Sequence[float]
    reached: Sequence[bool]
    median: Estimate

    @property
    def num_reached(self) -> int:
        """Number of runs that reached the threshold."""
        return sum(self.reached)


def median_position(
    positions: Sequence[float], reached: Sequence[bool], level: float = 0.95
) -> Estimate:
    """Estimate the median position at which runs reach a threshold (Kaplan–Meier).

    Parameters
    ----------
    positions
        Where each run reached it, or its end; not negative.
    reached
        Whether each run reached it; others are censored at their end.

    Returns
    -------
    Estimate
        The value or the upper bound is infinite if too few runs reached it; the lower bound is 0
        if all of so few runs may exceed the median by chance.

    Raises
    ------
    DataError
        If there is no run, a position is not finite, or the level is not in (0, 1).

    Notes
    -----
    Kaplan and Meier (1958). The interval consists of the positions at which the log-log interval
    of the survival function includes one half: Brookmeyer and Crowley (1982). Censoring is assumed
    independent: the number of iterations is set in advance.
    """
    times, events = np.asarray(positions, dtype=np.float64), np.asarray(reached, dtype=bool)
    if not len(times) or len(times) != len(events) or not np.isfinite(times).all():
        raise DataError(
            f"median_position: got {list(positions)} and {list(reached)}, expected a finite"
            " position for each run."
        )
    normal_quantile(level)  # raises if the level is invalid
    # all of n runs exceed the median with probability 1 / 2^n
    is_inconclusive = 0.5 ** len(times) > 1 - level
    if not events.any():
        low = 0.0 if is_inconclusive else float(times.min())
        return Estimate(math.inf, low, math.inf, len(times), level, METHOD)
    from scipy.stats import CensoredData, ecdf

    left = ecdf(CensoredData(uncensored=times[events], right=times[~events])).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN where all or none reached it
        ends = left.confidence_interval(level, method="log-log")
    # NaN where all runs reached it: use Clopper and Pearson's bound
    bound = ((1 - level) / 2) ** (1 / len(times))
    all_reached = left.probabilities == 0
    lows = np.where(all_reached, 0.0, ends.low.probabilities)
    highs = np.where(all_reached, 1 - bound, ends.high.probabilities)
    return Estimate(
        _first_below(left.quantiles, left.probabilities),
        0.0 if is_inconclusive else _first_below(left.quantiles, lows),
        _first_below(left.quantiles, highs),
        len(times),
        level,
        METHOD,
    )


def _first_below(times: np.ndarray, shares: np.ndarray) -> float:
    """Return the first time at which a share is at most one half, or infinity."""
    indices = np.flatnonzero(shares <= 0.5 + 1e-12)  # NaN compares as false
    return float(times[indices[0]]) if len(indices) else math.inf
