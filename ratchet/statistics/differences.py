"""Differences of two groups of runs: intervals, permutation tests, and power of the t-test.

Runs with the same seed and data can be paired, which removes their common variation: pairs are
then resampled instead of runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.stratified import (
    NO_INTERVAL,
    NUM_RESAMPLES,
    Aggregate,
    FloatArray,
    IntervalMethod,
    Strata,
    checked_scores,
    draw_runs,
    interquartile_mean,
    quantile_levels,
)

MAX_EXACT = 20_000
"""Up to this number, all permutations are enumerated; above it, they are sampled."""


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
    """Estimate aggregate(first) − aggregate(second).

    Parameters
    ----------
    first, second
        A list of scores for each task, the same tasks in the same order.
    paired
        Whether scores at the same index are paired, e.g. by seed: the same indices of both are
        then resampled.
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
    """Return the two-sided p-value of the difference of means under permutation.

    Paired runs are swapped within their pairs, others within their task. All permutations are
    enumerated if there are at most ``num_permutations``; otherwise that number is sampled.

    Raises
    ------
    DataError
        As :func:`aggregate_difference`.

    Notes
    -----
    Runs of all tasks have equal weight. With n pairs the minimum is 2 / 2^n: 0.06 for five.
    """
    ones, twos = _checked_pair(first, second, paired=paired)
    rng, rounding = np.random.default_rng(seed), _rounding(ones, twos)
    if paired:
        gaps = np.concatenate(ones) - np.concatenate(twos)
        unit = float(np.abs(gaps).max()) or 1.0  # tiny gaps would be rounded
        gaps = gaps / unit
        sums, exact = _flipped(gaps, num_permutations, rng)
        seen, found = gaps.mean(), sums / len(gaps)
    else:
        # the total is fixed, so the sum of the first group determines the difference
        together = np.concatenate([*ones, *twos])
        middle = together.mean()  # avoids rounding of large numbers
        unit = float(np.abs(together - middle).max()) or 1.0
        ones, twos = ([(task - middle) / unit for task in group] for group in (ones, twos))
        scales = [1 / len(task) for task in (np.concatenate(ones), np.concatenate(twos))]
        total = sum(float(task.sum()) for task in (*ones, *twos))
        sums, exact = _shuffled(ones, twos, num_permutations, rng)
        found = sums * scales[0] - (total - sums) * scales[1]
        seen = sum(float(t.sum()) for t in ones) * sum(scales) - total * scales[1]
    rounding /= unit
    as_far = int((np.abs(found) >= abs(seen) - rounding).sum())
    # the observed order is one of the possible permutations
    return as_far / len(found) if exact else (as_far + 1) / (len(found) + 1)


def adjust_for_many(chances: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests for the family-wise error rate.

    Notes
    -----
    Holm, "A simple sequentially rejective multiple test procedure" (1979).
    """
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    adjusted, largest = [0.0] * len(chances), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = largest
    return adjusted


def _checked_pair(
    first: Strata, second: Strata, *, paired: bool
) -> tuple[list[FloatArray], list[FloatArray]]:
    ones, twos = checked_scores(first), checked_scores(second)
    sizes = [len(task) for task in ones], [len(task) for task in twos]
    if len(ones) != len(twos) or (paired and sizes[0] != sizes[1]):
        raise DataError(
            f"a difference of runs: got {sizes[0]} and {sizes[1]} runs per task, expected the"
            f" same tasks{' and, since they are pairs, equal numbers of runs' if paired else ''}."
        )
    return ones, twos


def _rounding(ones: Sequence[FloatArray], twos: Sequence[FloatArray]) -> float:
    """Return a bound on the rounding error of means that are equal in exact arithmetic."""
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
    """Return the sums of the gaps under all sign changes, or sampled ones."""
    exact = 2 ** len(gaps) <= most
    if exact:
        ways = np.arange(2 ** len(gaps))[:, None] >> np.arange(len(gaps)) & 1
    else:
        ways = rng.integers(2, size=(most, len(gaps)))
    return (1.0 - 2.0 * ways) @ gaps, exact


def _shuffled(
    ones: Sequence[FloatArray], twos: Sequence[FloatArray], most: int, rng: np.random.Generator
) -> tuple[FloatArray, bool]:
    """Return the sums of the first group under permutations within tasks."""
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


POWER = 0.8
MAX_RUNS = 10_000


@dataclass(frozen=True)
class Power:
    """Power of a comparison of two groups of runs.

    Attributes
    ----------
    difference
        Difference of the means, averaged over tasks.
    spread
        Standard deviation of the runs of a group or, paired, of the differences of pairs.
    critical
        Smallest difference of means that the t-test finds significant.
    detectable
        Smallest difference that this number of runs shows with probability ``power``.
    needed
        Runs per task and group required to show the observed difference with probability
        ``power``; None above ``MAX_RUNS`` or if the difference is 0.
    """

    difference: float
    spread: float
    critical: float
    detectable: float
    needed: int | None
    power: float = POWER


def power_of_t_test(
    effect: float, num_runs: int, *, paired: bool = False, level: float = 0.95, num_tasks: int = 1
) -> float:
    """Return the power of a two-sided t-test for a standardised effect.

    Parameters
    ----------
    effect
        Difference of the means over the standard deviation of runs (paired: of the differences of
        pairs). Runs are assumed normal with equal spread in both groups.
    num_runs
        Runs per group and task.
    level
        One minus the significance level.

    Notes
    -----
    Cohen, "Statistical power analysis for the behavioral sciences" (1988), by the noncentral t.
    """
    from scipy.stats import nct, t

    if num_runs < 2:
        return 0.0
    groups = 1 if paired else 2
    freedom = groups * num_tasks * (num_runs - 1)
    shift = abs(effect) * math.sqrt(num_runs * num_tasks / groups)
    bound = float(t.ppf(0.5 + level / 2, freedom))
    ends = nct.sf(bound, freedom, [shift, -shift])
    return float(np.nansum(ends))  # scipy returns NaN for a negligible far tail


def needed_runs(
    effect: float,
    *,
    paired: bool = False,
    level: float = 0.95,
    power: float = POWER,
    num_tasks: int = 1,
) -> int | None:
    """Return the runs per group and task required to show an effect with a given power.

    None above ``MAX_RUNS``. Other parameters as in :func:`power_of_t_test`.
    """

    def is_enough(num_runs: int) -> bool:
        return (
            power_of_t_test(effect, num_runs, paired=paired, level=level, num_tasks=num_tasks)
            >= power
        )

    high = 2
    while high < MAX_RUNS and not is_enough(high):
        high *= 2
    if not is_enough(min(high, MAX_RUNS)):
        return None
    low, high = high // 2, min(high, MAX_RUNS)  # low is too few, or 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return max(2, high)


def detectable_effect(
    num_runs: int,
    *,
    paired: bool = False,
    level: float = 0.95,
    power: float = POWER,
    num_tasks: int = 1,
) -> float:
    """Return the smallest effect shown with a given power; infinite for one run."""
    from scipy.optimize import brentq

    if num_runs < 2:
        return math.inf

    def missing(effect: float) -> float:
        return (
            power_of_t_test(effect, num_runs, paired=paired, level=level, num_tasks=num_tasks)
            - power
        )

    if missing(0.0) >= 0:  # at this level, chance alone has the power
        return 0.0
    high = 1.0
    while missing(high) < 0:
        high *= 2
    return float(brentq(missing, 0.0, high))


def power_of_groups(
    first: Strata,
    second: Strata,
    *,
    paired: bool = False,
    level: float = 0.95,
    power: float = POWER,
) -> Power:
    """Estimate the detectable difference of two groups and the runs required to show theirs.

    Spread and difference are themselves estimates from few runs.

    Raises
    ------
    DataError
        If a task has fewer than two runs, or the tasks differ.
    """
    ones, twos = checked_scores(first), checked_scores(second)
    if len(ones) != len(twos) or min(map(len, [*ones, *twos])) < 2:
        raise DataError(
            f"power_of_groups: got {list(map(len, ones))} and {list(map(len, twos))} runs"
            " per task, expected the same tasks and at least two runs of each."
        )
    tasks = list(zip(ones, twos, strict=True))
    if paired:
        variance = float(np.mean([(one - two).var(ddof=1) for one, two in tasks]))
    else:
        variance = float(np.mean([(a.var(ddof=1) + b.var(ddof=1)) / 2 for a, b in tasks]))
    difference = float(np.mean([one.mean() - two.mean() for one, two in tasks]))
    spread = math.sqrt(variance)
    num_runs, count = min(map(len, [*ones, *twos])), len(tasks)
    least = detectable_effect(num_runs, paired=paired, level=level, power=power, num_tasks=count)
    needed: int | None = None
    if difference != 0:
        needed = (
            2
            if spread == 0
            else needed_runs(
                difference / spread, paired=paired, level=level, power=power, num_tasks=count
            )
        )
    critical = _critical_effect(num_runs, 1 if paired else 2, level, count) * spread
    return Power(difference, spread, critical, least * spread, needed, power)


def _critical_effect(num_runs: int, groups: int, level: float, num_tasks: int) -> float:
    """Return the smallest effect that a two-sided t-test finds significant."""
    from scipy.stats import t

    freedom = groups * num_tasks * (num_runs - 1)
    return float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(groups / (num_runs * num_tasks))
