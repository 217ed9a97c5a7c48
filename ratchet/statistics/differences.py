"""Differences of two groups of runs: estimates with bootstrap intervals.

Runs with the same seed and data can be paired, which removes their common variation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.stratified import (
    NO_INTERVAL,
    NUM_RESAMPLES,
    FloatArray,
    IntervalMethod,
    Strata,
    checked_scores,
    draw_runs,
    interquartile_mean,
    method_label,
    quantile_levels,
    stratified_interval,
)


def iqm_difference(
    first: Strata,
    second: Strata,
    *,
    paired: bool = False,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Estimate the difference of interquartile means; of pairs, that of their differences.

    Parameters
    ----------
    first, second
        A list of scores for each task, the same tasks in the same order.
    paired
        Whether scores at the same index are paired, e.g. by seed.
    level, method, num_resamples, seed
        As in :func:`ratchet.statistics.stratified_interval`.

    Returns
    -------
    Estimate
        With ``n`` the number of pairs, or of runs of both.

    Raises
    ------
    DataError
        If the numbers of tasks differ or, paired, the numbers of runs.
    """
    ones, twos = checked_pair(first, second, paired=paired)
    if paired:
        gaps = [(one - two).tolist() for one, two in zip(ones, twos, strict=True)]
        return stratified_interval(
            gaps,
            interquartile_mean,
            level=level,
            method=method,
            num_resamples=num_resamples,
            seed=seed,
        )
    value, sizes = _iqm(ones) - _iqm(twos), [len(task) for task in (*ones, *twos)]
    lower, upper = quantile_levels(method, level, sizes)
    if min(sizes) < 2:
        return Estimate(float(value), math.nan, math.nan, sum(sizes), level, NO_INTERVAL)
    draws = draw_runs([*ones, *twos], num_resamples, np.random.default_rng(seed))
    resampled = [task[indices] for task, indices in zip([*ones, *twos], draws, strict=True)]
    differences = _iqm(resampled[: len(ones)]) - _iqm(resampled[len(ones) :])
    low, high = np.quantile(differences, [lower, upper])
    return Estimate(float(value), float(low), float(high), sum(sizes), level, method_label(method))


def standard_errors(
    ones: Sequence[FloatArray],
    twos: Sequence[FloatArray],
    first: FloatArray,
    second: FloatArray,
    *,
    paired: bool,
) -> FloatArray:
    """Return the standard errors [...] of mean(first) − mean(second), with variances within tasks.

    Parameters
    ----------
    ones, twos
        The groups; only the numbers of runs of each task are read.
    first, second
        Scores [..., N] and [..., K] of all runs of these tasks, in their order.
    """
    parts, groups = [first, second], [ones, twos]
    if paired:
        parts, groups = [first - second], [ones]
    variance = np.zeros(first.shape[:-1])
    for part, tasks in zip(parts, groups, strict=True):
        edges = np.cumsum([len(task) for task in tasks])[:-1]
        for task_values in np.split(part, edges, axis=-1):
            size = task_values.shape[-1]
            variance += task_values.var(axis=-1, ddof=min(1, size - 1)) * size / part.shape[-1] ** 2
    return np.asarray(np.sqrt(variance))


def checked_pair(
    first: Strata, second: Strata, *, paired: bool
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return the scores of two groups as arrays; errors as :func:`iqm_difference`."""
    ones, twos = checked_scores(first), checked_scores(second)
    sizes = [len(task) for task in ones], [len(task) for task in twos]
    if len(ones) != len(twos) or (paired and sizes[0] != sizes[1]):
        raise DataError(
            f"a difference of runs: got {sizes[0]} and {sizes[1]} runs per task, expected the"
            f" same tasks{' and, since they are pairs, equal numbers of runs' if paired else ''}."
        )
    return ones, twos


def _iqm(tasks: Sequence[FloatArray]) -> FloatArray:
    return interquartile_mean(np.concatenate(tasks, axis=-1))
