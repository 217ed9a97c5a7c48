"""Intervals in closed form: one proportion, clustered proportions, a difference of two.

Pure functions of counts; what needs resampling is in :mod:`ratchet.statistics.bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate


def normal_quantile(level: float) -> float:
    """Return z such that a standard normal lies in [-z, z] with probability ``level``.

    Raises
    ------
    DataError
        If ``level`` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise DataError(f"level: got {level!r}, expected a number between 0 and 1, e.g. 0.95.")
    return NormalDist().inv_cdf(0.5 + level / 2)


def wilson_interval(successes: float, n: int, level: float = 0.95) -> Estimate:
    """Estimate a proportion with Wilson's score interval.

    Parameters
    ----------
    n
        Number of trials. With none, the value is NaN and the interval [0, 1].

    Raises
    ------
    DataError
        If the counts are no counts.

    Notes
    -----
    Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    if n < 0 or not 0 <= successes <= n:
        raise DataError(f"wilson_interval: got {successes} of {n}, expected 0 <= successes <= n.")
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, level, "wilson")
    value = successes / n
    low, high = _wilson(value, n, normal_quantile(level))
    return Estimate(value, low, high, n, level, "wilson")


def clustered_proportion(
    successes: Sequence[float], clusters: Sequence[Hashable], level: float = 0.95
) -> Estimate:
    """Estimate a proportion when trials come in clusters, e.g. a datapoint tested several times.

    Wilson's interval at the effective sample size: p(1-p) over the cluster-robust variance of
    the mean. With one trial a cluster it *is* Wilson's interval. The effective size never
    exceeds the number of trials, and is the number of clusters where all trials agree.

    Parameters
    ----------
    successes
        0 or 1 for each trial.
    clusters
        The cluster of each trial, as long as ``successes``.

    Returns
    -------
    Estimate
        With ``n`` the number of clusters.

    Raises
    ------
    DataError
        If the lengths differ.

    Notes
    -----
    Korn and Graubard, "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data" (1998), with Wilson's interval in the end.
    """
    sums, counts = sum_by_cluster(successes, clusters)
    num_clusters, num_trials = len(sums), int(counts.sum())
    if num_trials == num_clusters:
        return wilson_interval(float(sums.sum()), num_trials, level)
    value = float(sums.sum() / num_trials)
    residuals = sums - value * counts
    variance = float((residuals**2).sum()) / num_trials**2
    if num_clusters > 1:
        variance *= num_clusters / (num_clusters - 1)
    effective = float(num_clusters)
    if variance > 0 and num_clusters > 1:
        effective = min(value * (1 - value) / variance, float(num_trials))
    low, high = _wilson(value, effective, normal_quantile(level))
    return Estimate(value, low, high, num_clusters, level, "wilson, clustered")


def difference_of_proportions(
    first: tuple[float, int], second: tuple[float, int], level: float = 0.95
) -> Estimate:
    """Estimate the difference first − second of two independent proportions (Newcombe).

    Parameters
    ----------
    first, second
        (successes, trials) of each.

    Returns
    -------
    Estimate
        With ``n`` the smaller number of trials.

    Notes
    -----
    Newcombe, "Interval estimation for the difference between independent proportions" (1998),
    method 10.
    """
    one, two = wilson_interval(*first, level), wilson_interval(*second, level)
    return newcombe_difference(one, two)


def newcombe_difference(first: Estimate, second: Estimate) -> Estimate:
    """Estimate first − second of two independent proportions from the intervals of each."""
    value = first.value - second.value
    if math.isnan(value):
        return Estimate(math.nan, -1.0, 1.0, 0, first.level, "newcombe")
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    n = min(first.n, second.n)
    return Estimate(value, value - below, value + above, n, first.level, "newcombe")


def sum_by_cluster(
    values: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums [G] and counts [G] of values by cluster, in order of first appearance.

    Raises
    ------
    DataError
        If the lengths differ.
    """
    if len(values) != len(clusters):
        raise DataError(f"got {len(values)} values and {len(clusters)} clusters, expected as many.")
    positions: dict[Hashable, int] = {}
    where = [positions.setdefault(cluster, len(positions)) for cluster in clusters]
    index = np.asarray(where, dtype=np.int64)
    weights = np.asarray(values, dtype=np.float64)
    sums = np.bincount(index, weights=weights, minlength=len(positions))
    counts = np.bincount(index, minlength=len(positions))
    return np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)


def _wilson(value: float, n: float, z: float) -> tuple[float, float]:
    """Return the ends of Wilson's interval; ``n`` may be an effective size."""
    centre = value + z**2 / (2 * n)
    spread = z * math.sqrt(value * (1 - value) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    low = 0.0 if value == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if value == 1 else min(1.0, (centre + spread) / scale)
    return low, high
