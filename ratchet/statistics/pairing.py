"""By how much one group of runs is better than another, paired by seed or not, and by chance.

Two runs with the same seed and data start alike, and what is common to them falls out of their
difference: then pairs are drawn, not runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.aggregates import Aggregate, FloatArray, interquartile_mean
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.stratified import (
    NO_INTERVAL,
    NUM_RESAMPLES,
    IntervalMethod,
    Strata,
    checked_scores,
    draw_runs,
    quantile_levels,
)

MAX_EXACT = 20_000
"""As many permutations are counted one by one; of more, a sample is drawn."""


def aggregate_difference(
    first: Strata,
    second: Strata,
    aggregate: Aggregate = interquartile_mean,
    *,
    paired: bool = False,
    level: float = 0.95,
    method: IntervalMethod = "expanded",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Estimate the aggregate of the first minus that of the second.

    Parameters
    ----------
    first, second
        A list of scores for each task, the same tasks in the same order.
    paired
        Whether scores at the same place belong together, e.g. have the same seed: the same places
        are then drawn of both.
    level, method, num_resamples, seed
        As in :func:`ratchet.statistics.stratified_interval`.

    Returns
    -------
    Estimate
        With ``n`` the number of pairs, or of runs of both.

    Raises
    ------
    DataError
        If they have not as many tasks, or of pairs not as many runs.
    """
    ones, twos = _checked_pair(first, second, paired=paired)
    value = float(aggregate(np.concatenate(ones)) - aggregate(np.concatenate(twos)))
    drawn_apart = ones if paired else [*ones, *twos]
    sizes = [len(task) for task in drawn_apart]
    lower, upper = quantile_levels(method, level, sizes)
    if min(sizes) < 2:
        return Estimate(value, math.nan, math.nan, sum(sizes), level, NO_INTERVAL)
    draws = draw_runs(drawn_apart, num_resamples, np.random.default_rng(seed))
    others = draws if paired else draws[len(ones) :]
    differences = _aggregate(ones, draws[: len(ones)], aggregate) - _aggregate(
        twos, others, aggregate
    )
    low, high = np.quantile(differences, [lower, upper])
    label = f"{'paired' if paired else 'stratified'} bootstrap ({method})"
    return Estimate(value, float(low), float(high), sum(sizes), level, label)


def permutation_test(
    first: Strata,
    second: Strata,
    *,
    paired: bool = False,
    num_permutations: int = MAX_EXACT,
    seed: int = 0,
) -> float:
    """Return how likely chance alone would part the two means so far, in either direction.

    Paired, the two of a pair change places; otherwise any two runs of a task do. All ways to do so
    are counted where there are no more than ``num_permutations``; of more, so many are drawn.

    Raises
    ------
    DataError
        As :func:`aggregate_difference`.

    Notes
    -----
    Runs of all tasks count alike. Of n pairs it is never below 2 / 2^n: 0.06 for five.
    """
    ones, twos = _checked_pair(first, second, paired=paired)
    rng, rounding = np.random.default_rng(seed), _rounding(ones, twos)
    if paired:
        gaps = np.concatenate(ones) - np.concatenate(twos)
        unit = float(np.abs(gaps).max()) or 1.0  # what is next to nothing would be rounded
        gaps = gaps / unit
        sums, exact = _flipped(gaps, num_permutations, rng)
        seen, found = gaps.mean(), sums / len(gaps)
    else:
        # with what all runs sum to given, the sum of the first alone decides
        together = np.concatenate([*ones, *twos])
        middle = together.mean()  # large numbers would be rounded
        unit = float(np.abs(together - middle).max()) or 1.0
        ones, twos = ([(task - middle) / unit for task in group] for group in (ones, twos))
        scales = [1 / len(task) for task in (np.concatenate(ones), np.concatenate(twos))]
        total = sum(float(task.sum()) for task in (*ones, *twos))
        sums, exact = _shuffled(ones, twos, num_permutations, rng)
        found = sums * scales[0] - (total - sums) * scales[1]
        seen = sum(float(t.sum()) for t in ones) * sum(scales) - total * scales[1]
    rounding /= unit
    as_far = int((np.abs(found) >= abs(seen) - rounding).sum())
    # the order that was seen is one of those that might have been drawn
    return as_far / len(found) if exact else (as_far + 1) / (len(found) + 1)


def adjust_for_many(chances: Sequence[float]) -> list[float]:
    """Return p-values of several tests such that one below α is rare among all of them.

    Notes
    -----
    Holm, "A simple sequentially rejective multiple test procedure" (1979).
    """
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    adjusted, largest = [0.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[place]))
        adjusted[place] = largest
    return adjusted


def _checked_pair(
    first: Strata, second: Strata, *, paired: bool
) -> tuple[list[FloatArray], list[FloatArray]]:
    ones, twos = checked_scores(first), checked_scores(second)
    sizes = [len(task) for task in ones], [len(task) for task in twos]
    if len(ones) != len(twos) or (paired and sizes[0] != sizes[1]):
        raise DataError(
            f"a difference of runs: got {sizes[0]} and {sizes[1]} runs of the tasks, expected the"
            f" same tasks{' and as many runs of each, since they are pairs' if paired else ''}."
        )
    return ones, twos


def _rounding(ones: Sequence[FloatArray], twos: Sequence[FloatArray]) -> float:
    """Return by how much means may differ that would be the same in exact numbers."""
    tasks = [np.concatenate(pair) for pair in zip(ones, twos, strict=True)]
    widest, largest = (max(f(task) for task in tasks) for f in (np.ptp, lambda t: np.abs(t).max()))
    return float(1e-9 * widest + 4 * np.finfo(np.float64).eps * largest)


def _aggregate(
    tasks: Sequence[FloatArray],
    draws: Sequence[np.ndarray],
    aggregate: Aggregate,
) -> FloatArray:
    chosen = [task[places] for task, places in zip(tasks, draws, strict=True)]
    return aggregate(np.concatenate(chosen, axis=1))


def _flipped(gaps: FloatArray, most: int, rng: np.random.Generator) -> tuple[FloatArray, bool]:
    """Return the sums of the gaps with their signs changed in all ways, or in some."""
    exact = 2 ** len(gaps) <= most
    if exact:
        ways = np.arange(2 ** len(gaps))[:, None] >> np.arange(len(gaps)) & 1
    else:
        ways = rng.integers(2, size=(most, len(gaps)))
    return (1.0 - 2.0 * ways) @ gaps, exact


def _shuffled(
    ones: Sequence[FloatArray], twos: Sequence[FloatArray], most: int, rng: np.random.Generator
) -> tuple[FloatArray, bool]:
    """Return what the first would sum to, were its runs others of their tasks."""
    pooled = [np.concatenate(pair) for pair in zip(ones, twos, strict=True)]
    ways = math.prod(math.comb(len(task), len(own)) for task, own in zip(pooled, ones, strict=True))
    if ways <= most:
        sums = [
            [math.fsum(chosen) for chosen in itertools.combinations(task.tolist(), len(own))]
            for task, own in zip(pooled, ones, strict=True)
        ]
        return np.array([math.fsum(each) for each in itertools.product(*sums)]), True
    drawn = np.zeros(most)
    for task, own in zip(pooled, ones, strict=True):
        shuffled = rng.permuted(np.broadcast_to(task, (most, len(task))), axis=1)
        drawn += shuffled[:, : len(own)].sum(axis=1)
    return drawn, False
