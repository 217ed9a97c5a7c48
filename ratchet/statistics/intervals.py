"""Intervals of proportions in closed form and of means by the bootstrap.

The independent unit is the datapoint, even if it was tested several times.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate


def normal_quantile(level: float) -> float:
    """Return z such that a standard normal is within [-z, z] with probability ``level``."""
    if not 0 < level < 1:
        raise DataError(f"level: got {level!r}, expected a number between 0 and 1, e.g. 0.95.")
    return NormalDist().inv_cdf(0.5 + level / 2)


def wilson_interval(successes: float, n: int, level: float = 0.95) -> Estimate:
    """Estimate a proportion with Wilson's score interval.

    Parameters
    ----------
    n
        Number of trials. If 0, the value is NaN and the interval [0, 1].

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
    """Estimate a proportion from clustered trials, e.g. repeated tests of a datapoint.

    Wilson's interval at the effective sample size: p(1-p) over the cluster-robust variance of
    the mean. It equals Wilson's interval if every cluster has one trial. The effective size is at
    most the number of trials, and the number of clusters if all trials agree.

    Parameters
    ----------
    successes
        0 or 1 for each trial.
    clusters
        The cluster of each trial, with the length of ``successes``.

    Returns
    -------
    Estimate
        With ``n`` the number of clusters.

    Notes
    -----
    Korn and Graubard, "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data" (1998), here with Wilson's interval.
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
    """Estimate first − second of two independent proportions from their intervals."""
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
    """Return sums [G] and counts [G] of values by cluster, in order of first appearance."""
    if len(values) != len(clusters):
        raise DataError(
            f"got {len(values)} values and {len(clusters)} clusters, expected equal lengths."
        )
    positions: dict[Hashable, int] = {}
    where = [positions.setdefault(cluster, len(positions)) for cluster in clusters]
    index = np.asarray(where, dtype=np.int64)
    weights = np.asarray(values, dtype=np.float64)
    sums = np.bincount(index, weights=weights, minlength=len(positions))
    counts = np.bincount(index, minlength=len(positions))
    return np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)


def _wilson(value: float, n: float, z: float) -> tuple[float, float]:
    """Return the bounds of Wilson's interval; ``n`` may be an effective size."""
    centre = value + z**2 / (2 * n)
    spread = z * math.sqrt(value * (1 - value) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    low = 0.0 if value == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if value == 1 else min(1.0, (centre + spread) / scale)
    return low, high


Method = Literal["percentile", "bca"]
FloatArray = NDArray[np.float64]

MAX_BATCH_ELEMENTS = 2_000_000


def bootstrap_interval(
    values: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    method: Method = "bca",
    num_resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Estimate a mean by the bootstrap; a share, the mean of zeros and ones, by Wilson's interval.

    The bootstrap of a share has no width where all values agree.

    Parameters
    ----------
    clusters
        The cluster of each trial; clusters are resampled. If None, each trial is one cluster.
    method
        "bca" (bias-corrected and accelerated; Efron 1987) or "percentile".
    seed
        Equal arguments give equal intervals.

    Returns
    -------
    Estimate
        With ``n`` the number of clusters. With fewer than two, or if all are equal and neither 0
        nor 1, the interval is the value itself (NaN if empty).
    """
    names = list(range(len(values)) if clusters is None else clusters)
    if names and _are_shares(values):
        normal_quantile(level)  # raises if the level is invalid
        return clustered_proportion(values, names, level)
    sums, counts = sum_by_cluster(values, names)
    return _interval(sums, counts, level=level, method=method, resamples=num_resamples, seed=seed)


def paired_difference(
    first: tuple[Sequence[float], Sequence[Hashable]],
    second: tuple[Sequence[float], Sequence[Hashable]],
    *,
    level: float = 0.95,
    method: Method = "bca",
    num_resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Estimate the mean difference first − second over common datapoints.

    By the bootstrap, or for zeros and ones by the interval of Bonett and Price, which has a width
    even if the two never disagree.

    Parameters
    ----------
    first, second
        (values, datapoint ids) of each; a datapoint that was tested several times contributes
        its mean.
    level, method, num_resamples, seed
        As in :func:`bootstrap_interval`; datapoints are resampled.

    Returns
    -------
    Estimate
        With ``n`` the number of common datapoints.

    Raises
    ------
    DataError
        If they have no common datapoint.

    Notes
    -----
    Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data" (2012): the normal interval after adding a pair of each disagreement, here
    also for datapoints that were tested several times.
    """
    one, two = _mean_by_id(*first), _mean_by_id(*second)
    common = [name for name in one if name in two]
    if not common:
        raise DataError(
            f"paired_difference: {len(one)} and {len(two)} datapoints have none in common."
            " Use difference_of_proportions for results on different datasets."
        )
    differences = np.array([one[name] - two[name] for name in common])
    if _are_shares([*first[0], *second[0]]):
        return _adjusted_wald(differences, level)
    estimate = _interval(
        differences,
        np.ones(len(common)),
        level=level,
        method=method,
        resamples=num_resamples,
        seed=seed,
    )
    return replace(estimate, method=f"paired {estimate.method}")


def _are_shares(values: Sequence[float]) -> bool:
    return {*values} <= {0, 1}


def _adjusted_wald(differences: FloatArray, level: float) -> Estimate:
    """Estimate the mean of differences in [-1, 1] by the interval of Bonett and Price."""
    n = len(differences)
    adjusted = np.append(differences, [1.0, -1.0])
    half = normal_quantile(level) * float(adjusted.std()) / math.sqrt(n + 2)
    centre = float(adjusted.mean())
    low, high = max(-1.0, centre - half), min(1.0, centre + half)
    return Estimate(float(differences.mean()), low, high, n, level, "paired, adjusted Wald")


def _mean_by_id(values: Sequence[float], ids: Sequence[Hashable]) -> dict[Hashable, float]:
    sums, counts = sum_by_cluster(values, ids)
    return dict(zip(dict.fromkeys(ids), (sums / counts).tolist(), strict=True))


def _ratio_of_sums(sums: FloatArray, counts: FloatArray, axis: int = -1) -> FloatArray:
    result: FloatArray = sums.sum(axis=axis) / counts.sum(axis=axis)
    return result


def _interval(
    sums: FloatArray,
    counts: FloatArray,
    *,
    level: float,
    method: Method,
    resamples: int,
    seed: int,
) -> Estimate:
    """Bootstrap the ratio of two paired sums [G]."""
    normal_quantile(level)  # raises if the level is invalid
    n = len(sums)
    label = "bootstrap (BCa)" if method == "bca" else "bootstrap (percentile)"
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, level, label)
    value = float(_ratio_of_sums(sums, counts))
    if n == 1 or np.ptp(sums / counts) == 0:
        return Estimate(value, value, value, n, level, label)
    from scipy.stats import bootstrap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a degenerate BCa is handled below
        result = bootstrap(
            (sums, counts),
            _ratio_of_sums,
            paired=True,
            vectorized=True,
            n_resamples=resamples,
            batch=max(1, MAX_BATCH_ELEMENTS // n),
            confidence_level=level,
            method="BCa" if method == "bca" else "percentile",
            rng=np.random.default_rng(seed),
        )
    low, high = (float(end) for end in result.confidence_interval)
    if math.isnan(low) or math.isnan(high):
        ends = np.quantile(result.bootstrap_distribution, [0.5 - level / 2, 0.5 + level / 2])
        low, high = float(ends[0]), float(ends[1])
        label = "bootstrap (percentile)"
    return Estimate(value, low, high, n, level, label)
