"""Performance profiles: for each threshold, which share of the runs is better than it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ratchet.statistics.aggregates import FloatArray
from ratchet.statistics.band import Band
from ratchet.statistics.stratified import (
    NO_INTERVAL,
    IntervalMethod,
    Strata,
    checked_scores,
    draw_runs,
    method_label,
    quantile_levels,
)

NUM_RESAMPLES = 2_000
NUM_THRESHOLDS = 101


def performance_profile(
    strata: Strata,
    thresholds: Sequence[float],
    *,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Band:
    """Estimate which share of the runs of all tasks is better than each threshold.

    Parameters
    ----------
    strata, level, method, num_resamples, seed
        As in :func:`ratchet.statistics.stratified_interval`. Where all runs are on one side of a
        threshold all resamples agree: "percentile" then gives a single point, "expanded" ends
        where a run on the other side would have shown by now.
    thresholds
        Rising.

    Returns
    -------
    Band
        Never rising, nor are its ends.

    Raises
    ------
    DataError
        If a task has no run or a score is not finite.

    Notes
    -----
    The run-score distribution of Agarwal et al. (2021), section 4.3. The end where all agree is
    Clopper and Pearson's.
    """
    scores = checked_scores(strata)
    lower, upper = quantile_levels(method, level, [len(task) for task in scores])
    limits = np.asarray(thresholds, dtype=np.float64)
    values = _share_above(np.concatenate(scores), limits)
    n = sum(map(len, scores))
    if min(map(len, scores)) < 2:
        nothing = [math.nan] * len(limits)
        return Band(limits.tolist(), values.tolist(), nothing, nothing, n, level, NO_INTERVAL)
    rng = np.random.default_rng(seed)
    # a run counts as often as it is drawn, so that R × N counts do for all thresholds
    shares = np.zeros((num_resamples, len(limits)))
    for task, places in zip(scores, draw_runs(scores, num_resamples, rng), strict=True):
        above = (task[:, None] > limits).astype(np.float64)
        shares += _counts(places, len(task)) @ above
    shares /= n  # in the end: sums of counts are exact
    lows, highs = np.quantile(shares, [lower, upper], axis=0)
    if method == "expanded":
        surest = ((1 - level) / 2) ** (1 / n)
        lows, highs = np.minimum(lows, surest), np.maximum(highs, 1 - surest)
    return Band(
        limits.tolist(),
        values.tolist(),
        np.minimum.accumulate(lows).tolist(),
        np.maximum.accumulate(highs[::-1])[::-1].tolist(),
        n,
        level,
        method_label(method),
    )


def profile_thresholds(strata: Sequence[Strata], num: int = NUM_THRESHOLDS) -> list[float]:
    """Return thresholds over what the runs of all groups reach, with a margin at both ends."""
    scores = np.concatenate([task for group in strata for task in checked_scores(group)])
    low, high = float(scores.min()), float(scores.max())
    margin = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
    return [float(each) for each in np.linspace(low - margin, high + margin, num)]


def _share_above(scores: FloatArray, limits: FloatArray) -> FloatArray:
    result: FloatArray = (scores[:, None] > limits).mean(axis=0)
    return result


def _counts(places: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> FloatArray:
    """Return [R, N]: how often each run was drawn."""
    counts = np.zeros((len(places), size))
    np.add.at(counts, (np.arange(len(places))[:, None], places), 1.0)
    return counts
