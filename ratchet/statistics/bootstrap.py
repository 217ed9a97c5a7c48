"""Intervals by resampling: seeded, percentile or BCa, over values, clusters or pairs.

Resampling is over the independent unit: the datapoint, however often it was tested.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.intervals import normal_quantile, sum_by_cluster

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
    """Estimate a mean by the bootstrap.

    Parameters
    ----------
    clusters
        The cluster of each trial; whole clusters are drawn. Each trial its own when None.
    method
        "bca" (bias-corrected and accelerated; Efron 1987) or "percentile".
    seed
        Decides the samples: equal arguments give equal intervals.

    Returns
    -------
    Estimate
        With ``n`` the number of clusters. With fewer than two, or when all are equal, the
        interval is the value itself (NaN without any).

    Raises
    ------
    DataError
        If lengths differ or the level is not in (0, 1).
    """
    names = range(len(values)) if clusters is None else clusters
    sums, counts = sum_by_cluster(values, list(names))
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
    """Estimate the mean difference first − second over the datapoints that both were tested on.

    Parameters
    ----------
    first, second
        (values, datapoint ids) of each; a datapoint that was tested several times counts once,
        with its mean.
    level, method, num_resamples, seed
        As in :func:`bootstrap_interval`; datapoints are drawn.

    Returns
    -------
    Estimate
        With ``n`` the number of common datapoints.

    Raises
    ------
    DataError
        If the two have no datapoint in common.
    """
    one, two = _mean_by_id(*first), _mean_by_id(*second)
    common = [name for name in one if name in two]
    if not common:
        raise DataError(
            f"paired_difference: {len(one)} and {len(two)} datapoints have none in common."
            " Use difference_of_proportions for results on different datasets."
        )
    differences = np.array([one[name] - two[name] for name in common])
    estimate = _interval(
        differences,
        np.ones(len(common)),
        level=level,
        method=method,
        resamples=num_resamples,
        seed=seed,
    )
    return replace(estimate, method=f"paired {estimate.method}")


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
    normal_quantile(level)  # refuses a level that is none
    n = len(sums)
    label = "bootstrap (BCa)" if method == "bca" else "bootstrap (percentile)"
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, level, label)
    value = float(_ratio_of_sums(sums, counts))
    if n == 1 or np.ptp(sums / counts) == 0:
        return Estimate(value, value, value, n, level, label)
    from scipy.stats import bootstrap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a degenerate BCa is answered below
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
