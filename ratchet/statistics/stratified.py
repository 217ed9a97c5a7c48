"""How sure we are of an aggregate over few runs: the bootstrap, stratified by task.

Runs are drawn with replacement within each task, since runs of different tasks are no repetitions
of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.aggregates import Aggregate, FloatArray
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.intervals import normal_quantile

Strata = Sequence[Sequence[float]]
"""The scores of the runs of each task; a single task is a list of one list."""
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
        "expanded", whose quantiles lie further out to make up for how narrow the bootstrap is with
        few runs; or "percentile", as Agarwal et al. have it.
    seed
        Decides the samples: equal arguments give equal intervals.

    Returns
    -------
    Estimate
        With ``n`` the number of runs. If a task has a single run nothing can be drawn, and the
        ends are NaN.

    Raises
    ------
    DataError
        If a task has no run, a score is not finite, or the level is not in (0, 1).

    Notes
    -----
    Agarwal et al. (2021), section 4.1. Expanded: Hesterberg, "What teachers should know about the
    bootstrap" (2015), section 3.3, here with the degrees of freedom of all strata together.
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
            task[places]
            for task, places in zip(scores, draw_runs(scores, num_resamples, rng), strict=True)
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
    """Estimate how likely a run of the first is better than one of the second, tasks averaged.

    For each task the Mann–Whitney statistic over the number of pairs; ties count half.

    Parameters
    ----------
    first, second
        A list of scores for each task, the same tasks in the same order.
    level, method, num_resamples, seed
        As in :func:`stratified_interval`; runs of both are drawn. If every run of one is better
        than every run of the other, all resamples agree, however few the runs: "percentile" then
        gives a single point, and "expanded" ends no nearer to 0 or 1 than so few runs can show.

    Returns
    -------
    Estimate
        With ``n`` the number of runs of both.

    Raises
    ------
    DataError
        As :func:`stratified_interval`, and if they have not as many tasks.

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
    wins = [_wins(one, two) for one, two in zip(ones, twos, strict=True)]
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
    """Return what the best possible result shows: each run of one above each of the other.

    The probability of improvement at which that would happen by chance in (1 - level) / 2 of all
    repetitions, if one group's scores are distributed as the largest of k scores of the other's
    (Lehmann's alternatives: F and F^k, with the probability k / (k + 1)).

    Parameters
    ----------
    sizes
        The numbers of runs (N, K) of the two, for each task.

    Notes
    -----
    N runs from F^k all exceed K runs from F with probability K/k · B(K/k, N + 1), by integrating
    over the largest of the K. Lehmann, "The power of rank tests" (1953).
    """
    from scipy.optimize import brentq
    from scipy.special import betaln

    def log_chance(log_k: float, pairs: Sequence[tuple[int, ...]]) -> float:
        k = math.exp(log_k)
        return float(
            sum(math.log(few / k) + betaln(few / k, many + 1) for many, few in pairs)
        ) - math.log((1 - level) / 2)

    bounds = []
    for pairs in (sizes, [(few, many) for many, few in sizes]):  # either may be the one with k
        log_k = brentq(log_chance, -40.0, 40.0, args=(pairs,))
        bounds.append(1 / (1 + math.exp(-log_k)))
    return float(min(bounds))


def checked_scores(strata: Strata) -> list[FloatArray]:
    """Return the scores as arrays; raises DataError as :func:`stratified_interval` does."""
    scores = [np.asarray(task, dtype=np.float64) for task in strata]
    if not scores or not all(len(task) for task in scores):
        raise DataError(
            f"got {[len(task) for task in scores]} runs of the tasks, expected at least one each."
        )
    if not all(np.isfinite(task).all() for task in scores):
        raise DataError("got scores that are not finite, expected numbers: one for each run.")
    return scores


def draw_runs(
    tasks: Sequence[Sized], num_resamples: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Draw runs with replacement within each task: the places [R, N] of N runs, R times."""
    return [rng.integers(len(task), size=(num_resamples, len(task))) for task in tasks]


def _wins(one: FloatArray, two: FloatArray) -> FloatArray:
    """Return [N, K]: 1 where a run is better than the other's, 1/2 where it is as good."""
    result: FloatArray = 0.5 * (np.sign(one[:, None] - two[None, :]) + 1)
    return result


def _resampled_mean(wins: FloatArray, num_resamples: int, rng: np.random.Generator) -> FloatArray:
    """Average [N, K] over drawn rows and columns, which are counted rather than copied."""
    rows, columns = (
        rng.multinomial(size, [1 / size] * size, num_resamples).astype(np.float64)
        for size in wins.shape
    )
    result: FloatArray = np.einsum("rk,rk->r", rows @ wins, columns) / wins.size
    return result


def quantile_levels(
    method: IntervalMethod, level: float, sizes: Sequence[int]
) -> tuple[float, float]:
    """Return which quantiles of the resampled values are the ends of the interval."""
    z = normal_quantile(level)
    freedom = sum(sizes) - len(sizes)
    if method == "expanded" and freedom > 0:
        from scipy.stats import t

        # a resample of n varies by (n - 1) / n of what n runs do
        z = float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(sum(sizes) / freedom)
    upper = NormalDist().cdf(z)
    return 1 - upper, upper


def method_label(method: IntervalMethod) -> str:
    """Name how an interval was made."""
    return f"stratified bootstrap ({method})"
