"""Learning curves of several runs: on common positions, averaged with a band, and what they say.

A position is what was spent when a value was measured: iterations, frames, tokens or calls. Runs
may end at different positions; nothing is said about a run beyond its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.aggregates import Aggregate, FloatArray
from ratchet.statistics.band import Band
from ratchet.statistics.stratified import (
    NO_INTERVAL,
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
    """What one run has recorded: ``values`` [K] at ``positions`` [K], rising; at least one."""

    positions: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> RunCurve:
        """Make a curve of (position, value) in any order; values that are no numbers are left out.

        Of several at one position it is their mean.

        Raises
        ------
        DataError
            If none is left.
        """
        whole = np.asarray(points, dtype=np.float64).reshape(-1, 2)
        whole = whole[np.isfinite(whole).all(axis=1)]
        if not len(whole):
            raise DataError("a learning curve: got no finite value, expected one at least.")
        positions, places = np.unique(whole[:, 0], return_inverse=True)
        return cls(positions, np.bincount(places, whole[:, 1]) / np.bincount(places))

    @property
    def start(self) -> float:
        """The first position."""
        return float(self.positions[0])

    @property
    def end(self) -> float:
        """The last position."""
        return float(self.positions[-1])


def common_positions(curves: Sequence[RunCurve], most: int = MAX_POSITIONS) -> FloatArray:
    """Return at most so many positions, as dense as the runs have values, up to the last of all."""
    every = np.unique(np.concatenate([curve.positions for curve in curves]))
    step = math.ceil(len(every) / most)
    places = np.arange(step - 1, len(every), step)
    if places[-1] != len(every) - 1:
        places = np.append(places[: most - 1], len(every) - 1)
    result: FloatArray = every[places]
    return result


def values_at(curve: RunCurve, positions: FloatArray) -> FloatArray:
    """Return a run's value at each position [S]: the mean since the position before.

    Where the run has no value in between it is interpolated; NaN before its first and after its
    last.
    """
    places = np.searchsorted(positions, curve.positions)
    inside = places < len(positions)
    sums = np.bincount(places[inside], curve.values[inside], minlength=len(positions))
    counts = np.bincount(places[inside], minlength=len(positions))
    values = np.interp(positions, curve.positions, curve.values)
    found = np.where(counts > 0, sums / np.maximum(counts, 1), values)
    covered = (positions >= curve.start) & (positions <= curve.end)
    return np.where(covered, found, np.nan)


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
    """Aggregate the runs of each task at each position, as far as all of them go.

    Whole runs are drawn, within their task. Where one run has ended the curve ends, since the rest
    would be that of other runs.

    Parameters
    ----------
    level, method, num_resamples, seed
        As in :func:`ratchet.statistics.stratified_interval`.

    Returns
    -------
    Band
        At those positions that all runs cover; none, perhaps.
    """
    whole = [np.stack([values_at(curve, positions) for curve in task]) for task in tasks]
    shared = np.isfinite(np.concatenate(whole)).all(axis=0)
    kept, where = [values[:, shared] for values in whole], positions[shared]
    sizes = [len(values) for values in kept]
    runs = np.concatenate(kept)
    values = aggregate(runs.T)
    if min(sizes) < 2 or not len(where):
        nothing = [math.nan] * len(where)
        label = NO_INTERVAL if min(sizes) < 2 else method_label(method)
        return Band(where.tolist(), values.tolist(), nothing, nothing, len(runs), level, label)
    draws = draw_runs(kept, num_resamples, np.random.default_rng(seed))
    starts = np.cumsum([0, *sizes[:-1]])
    places = np.concatenate([own + first for own, first in zip(draws, starts, strict=True)], axis=1)
    levels = quantile_levels(method, level, sizes)
    step = max(1, _MAX_ELEMENTS // places.size)
    ends = [
        np.quantile(aggregate(runs.T[begin : begin + step][:, places]), levels, axis=1)
        for begin in range(0, len(where), step)
    ]
    lows, highs = np.concatenate(ends, axis=1).tolist()
    return Band(
        where.tolist(), values.tolist(), lows, highs, len(runs), level, method_label(method)
    )


def mean_height(curve: RunCurve, start: float, end: float) -> float:
    """Return the area under a run's curve between two positions over their distance.

    The curve goes straight from value to value. It must cover both positions.

    Raises
    ------
    DataError
        If it does not, or nothing lies between them.
    """
    if not curve.start <= start < end <= curve.end:
        raise DataError(
            f"the area under a curve from {curve.start:g} to {curve.end:g}: got the limits"
            f" {start:g} and {end:g}, expected rising ones inside."
        )
    inside = (curve.positions > start) & (curve.positions < end)
    xs = np.concatenate([[start], curve.positions[inside], [end]])
    ys = np.interp(xs, curve.positions, curve.values)
    return float(np.trapezoid(ys, xs) / (end - start))


def first_reached(
    curve: RunCurve, threshold: float, positions: FloatArray | None = None
) -> tuple[float, bool]:
    """Return where a run is at a threshold or above for the first time; else its end, and False.

    Looked for at ``positions``, each with the mean since the one before: a single lucky value is
    not enough where there are many.
    """
    looked = curve.positions if positions is None else positions
    values = values_at(curve, looked)
    places = np.flatnonzero(np.isfinite(values) & (values >= threshold))
    return (float(looked[places[0]]), True) if len(places) else (curve.end, False)
