"""Aggregates over runs with intervals from the bootstrap stratified by task.

Runs are resampled with replacement within each task. Aggregates reduce the last axis, so that
all resamples are aggregated in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ratchet.errors import DataError
from ratchet.statistics.estimate import Band, Estimate
from ratchet.statistics.intervals import normal_quantile

FloatArray = NDArray[np.float64]
Aggregate = Callable[[FloatArray], FloatArray]

TRIMMED_SHARE = 0.25


def interquartile_mean(scores: ArrayLike) -> FloatArray:
    """Average the middle half of the scores.

    A quarter, rounded down, is trimmed at each end: for five scores, the best and the worst. With
    fewer than four scores it is the mean.

    Parameters
    ----------
    scores
        [..., N], N >= 1; all runs of all tasks.

    Returns
    -------
    numpy.ndarray
        [...].

    Notes
    -----
    Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice" (2021).
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=-1)
    num_scores = ordered.shape[-1]
    cut = int(TRIMMED_SHARE * num_scores)
    return np.asarray(ordered[..., cut : num_scores - cut].mean(axis=-1))


def median(scores: ArrayLike) -> FloatArray:
    """Return the median of the scores [..., N] of all runs of all tasks."""
    return np.asarray(np.median(np.asarray(scores, dtype=np.float64), axis=-1))


def mean(scores: ArrayLike) -> FloatArray:
    """Average the scores [..., N] of all runs of all tasks."""
    return np.asarray(np.asarray(scores, dtype=np.float64).mean(axis=-1))


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> FloatArray:
    """Average the shortfall of scores [..., N] below a target.

    Scores above the target count as equal to it. The target for an accuracy is 1.
    """
    short = target - np.minimum(np.asarray(scores, dtype=np.float64), target)
    return np.asarray(short.mean(axis=-1))


Strata = Sequence[Sequence[float]]
"""Scores of the runs of each task; a single task is a list of one list."""
IntervalMethod = Literal["percentile", "expanded"]

NUM_RESAMPLES = 10_000
NO_INTERVAL = "none: a single run"


def stratified_interval(
    strata: Strata,
    aggregate: Aggregate,
    *,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Estimate an aggregate over all runs of all tasks.

    Parameters
    ----------
    strata
        A list of scores for each task.
    aggregate
        From [..., N] to [...], e.g. :func:`ratchet.statistics.interquartile_mean`.
    method
        "expanded", whose quantiles are further out to correct the narrow bootstrap of few runs; or
        "percentile", as in Agarwal et al.
    seed
        Equal arguments give equal intervals.

    Returns
    -------
    Estimate
        With ``n`` the number of runs. The bounds are NaN if a task has a single run.

    Raises
    ------
    DataError
        If a task has no run, a score is not finite, or the level is not in (0, 1).

    Notes
    -----
    Agarwal et al. (2021), section 4.1. Expanded: Hesterberg, "What teachers should know about the
    bootstrap" (2015), section 3.3, here with the degrees of freedom of all strata combined.
    """
    scores = checked_scores(strata)
    lower, upper = quantile_levels(method, level, [len(task) for task in scores])
    everything = np.concatenate(scores)
    value = float(aggregate(everything))
    n = len(everything)
    if min(len(task) for task in scores) < 2:
        return Estimate(value, math.nan, math.nan, n, level, NO_INTERVAL)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate(
        [
            task[indices]
            for task, indices in zip(scores, draw_runs(scores, num_resamples, rng), strict=True)
        ],
        axis=1,
    )
    low, high = np.quantile(aggregate(drawn), [lower, upper])
    return Estimate(value, float(low), float(high), n, level, method_label(method))


def probability_of_improvement(
    first: Strata,
    second: Strata,
    *,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Estimate the probability that a run of the first beats one of the second, over tasks.

    The mean over tasks of the Mann–Whitney statistic over the number of pairs; ties count half.

    Parameters
    ----------
    first, second
        A list of scores for each task, the same tasks in the same order.
    level, method, num_resamples, seed
        As in :func:`stratified_interval`; runs of both are resampled. If every run of one is better
        than every run of the other, all resamples agree: "percentile" then gives a single point,
        and "expanded" is limited by :func:`separation_bound`.

    Returns
    -------
    Estimate
        With ``n`` the number of runs of both.

    Raises
    ------
    DataError
        As :func:`stratified_interval`, and if the numbers of tasks differ.

    Notes
    -----
    Agarwal et al. (2021), section 4.3.
    """
    ones, twos = checked_scores(first), checked_scores(second)
    if len(ones) != len(twos):
        raise DataError(
            f"probability_of_improvement: got {len(ones)} and {len(twos)} tasks, expected the same."
        )
    sizes = [len(task) for task in (*ones, *twos)]
    lower, upper = quantile_levels(method, level, sizes)
    wins: list[FloatArray] = [  # [N, K] each: 1 where the first is better, 1/2 where they tie
        0.5 * (np.sign(one[:, None] - two[None, :]) + 1)
        for one, two in zip(ones, twos, strict=True)
    ]
    value = float(np.mean([matrix.mean() for matrix in wins]))
    if min(sizes) < 2:
        return Estimate(value, math.nan, math.nan, sum(sizes), level, NO_INTERVAL)
    rng = np.random.default_rng(seed)
    shares = [_resampled_mean(matrix, num_resamples, rng) for matrix in wins]
    low, high = (float(end) for end in np.quantile(np.mean(shares, axis=0), [lower, upper]))
    if method == "expanded":
        bound = separation_bound([matrix.shape for matrix in wins], level)
        low, high = min(low, bound), max(high, 1 - bound)
    return Estimate(value, low, high, sum(sizes), level, method_label(method))


def separation_bound(sizes: Sequence[tuple[int, ...]], level: float = 0.95) -> float:
    """Return a bound on the probability of improvement under complete separation.

    The probability of improvement at which every run of one group beats every run of the other by
    chance in (1 - level) / 2 of all repetitions, if one group's scores are distributed as the
    largest of k scores of the other's (Lehmann's alternatives: F and F^k, with the probability
    k / (k + 1)).

    Parameters
    ----------
    sizes
        The numbers of runs (N, K) of the two, for each task.

    Notes
    -----
    N runs from F^k all exceed K runs from F with probability K/k · B(K/k, N + 1) (integrate over
    the largest of the K). Lehmann, "The power of rank tests" (1953).
    """
    from scipy.optimize import brentq
    from scipy.special import betaln

    def log_chance(log_k: float, pairs: Sequence[tuple[int, ...]]) -> float:
        k = math.exp(log_k)
        return float(
            sum(math.log(few / k) + betaln(few / k, many + 1) for many, few in pairs)
        ) - math.log((1 - level) / 2)

    bounds = []
    for pairs in (sizes, [(few, many) for many, few in sizes]):  # either group may have F^k
        log_k = brentq(log_chance, -40.0, 40.0, args=(pairs,))
        bounds.append(1 / (1 + math.exp(-log_k)))
    return float(min(bounds))


def checked_scores(strata: Strata) -> list[FloatArray]:
    """Return the scores as arrays; raise DataError as :func:`stratified_interval` does."""
    scores = [np.asarray(task, dtype=np.float64) for task in strata]
    if not scores or not all(len(task) for task in scores):
        raise DataError(
            f"got {[len(task) for task in scores]} runs per task, expected at least one each."
        )
    if not all(np.isfinite(task).all() for task in scores):
        raise DataError("got scores that are not finite, expected one finite number per run.")
    return scores


def draw_runs(
    tasks: Sequence[Sized], num_resamples: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Sample runs with replacement within each task: indices [R, N] of N runs, R times."""
    return [rng.integers(len(task), size=(num_resamples, len(task))) for task in tasks]


def _resampled_mean(wins: FloatArray, num_resamples: int, rng: np.random.Generator) -> FloatArray:
    """Average [N, K] over resampled rows and columns by their counts."""
    rows, columns = (
        rng.multinomial(size, [1 / size] * size, num_resamples).astype(np.float64)
        for size in wins.shape
    )
    result: FloatArray = np.einsum("rk,rk->r", rows @ wins, columns) / wins.size
    return result


def quantile_levels(
    method: IntervalMethod, level: float, sizes: Sequence[int]
) -> tuple[float, float]:
    """Return the quantiles of the resampled values that bound the interval."""
    z = normal_quantile(level)
    freedom = sum(sizes) - len(sizes)
    if method == "expanded" and freedom > 0:
        from scipy.stats import t

        # the variance of a resample of n is (n - 1) / n of that of n runs
        z = float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(sum(sizes) / freedom)
    upper = NormalDist().cdf(z)
    return 1 - upper, upper


def method_label(method: IntervalMethod) -> str:
    """Return the label of an interval method."""
    return f"stratified bootstrap ({method})"


PROFILE_RESAMPLES = 2_000
NUM_THRESHOLDS = 101


def performance_profile(
    strata: Strata,
    thresholds: Sequence[float],
    *,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = PROFILE_RESAMPLES,
    seed: int = 0,
) -> Band:
    """Estimate the share of runs of all tasks that exceed each threshold.

    Parameters
    ----------
    strata, level, method, num_resamples, seed
        As in :func:`stratified_interval`. Where all runs are on one side of a threshold, all
        resamples agree: "percentile" then gives a single point, "expanded" the bound of Clopper
        and Pearson.
    thresholds
        In ascending order.

    Returns
    -------
    Band
        Values and bounds are non-increasing.

    Raises
    ------
    DataError
        If a task has no run or a score is not finite.

    Notes
    -----
    The run-score distribution of Agarwal et al. (2021), section 4.3.
    """
    scores = checked_scores(strata)
    lower, upper = quantile_levels(method, level, [len(task) for task in scores])
    limits = np.asarray(thresholds, dtype=np.float64)
    values: FloatArray = (np.concatenate(scores)[:, None] > limits).mean(axis=0)
    n = sum(map(len, scores))
    if min(map(len, scores)) < 2:
        nothing = [math.nan] * len(limits)
        return Band(limits.tolist(), values.tolist(), nothing, nothing, n, level, NO_INTERVAL)
    rng = np.random.default_rng(seed)
    # resample counts [R, N] serve all thresholds
    shares = np.zeros((num_resamples, len(limits)))
    for task, indices in zip(scores, draw_runs(scores, num_resamples, rng), strict=True):
        above = (task[:, None] > limits).astype(np.float64)
        shares += _counts(indices, len(task)) @ above
    shares /= n  # divided last: sums of counts are exact
    lows, highs = np.quantile(shares, [lower, upper], axis=0)
    if method == "expanded":
        bound_of_all = ((1 - level) / 2) ** (1 / n)
        lows, highs = np.minimum(lows, bound_of_all), np.maximum(highs, 1 - bound_of_all)
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
    """Return thresholds over the score range of all groups with a margin at both ends."""
    scores = np.concatenate([task for group in strata for task in checked_scores(group)])
    low, high = float(scores.min()), float(scores.max())
    margin = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
    return [float(each) for each in np.linspace(low - margin, high + margin, num)]


def _counts(indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> FloatArray:
    """Return [R, N]: the number of times each run was sampled."""
    counts = np.zeros((len(indices), size))
    np.add.at(counts, (np.arange(len(indices))[:, None], indices), 1.0)
    return counts
