"""How many runs tell two groups apart: the power of Student's t-test.

The assumption is that runs are normal about their group's mean with the same spread in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.stratified import Strata, checked_scores

POWER = 0.8
MAX_RUNS = 10_000


@dataclass(frozen=True)
class Power:
    """What a number of runs can tell.

    Attributes
    ----------
    difference
        Of the means, tasks averaged.
    spread
        The standard deviation of runs of a group, or of the difference of two of a pair.
    critical
        What a difference of the means must exceed for the t-test to tell it from none.
    detectable
        The difference that so many runs would show with ``power``; a smaller one would be missed
        more often.
    needed
        How many runs of each task each group would need to show the difference as seen with
        ``power``; None beyond ``MAX_RUNS``, or without a difference.
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
    """Return how likely a two-sided t-test tells apart what differs by ``effect``.

    Parameters
    ----------
    effect
        The difference of the means over the standard deviation of runs; paired, over that of the
        differences of pairs.
    num_runs
        Of each group and task.
    level
        One minus the chance to tell apart what does not differ.

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
    return float(np.nansum(ends))  # scipy gives NaN for the far end where it is next to nothing


def needed_runs(
    effect: float,
    *,
    paired: bool = False,
    level: float = 0.95,
    power: float = POWER,
    num_tasks: int = 1,
) -> int | None:
    """Return how many runs of each group and task show an effect with a power.

    None if it would take more than ``MAX_RUNS``; the rest as in :func:`power_of_t_test`.
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
    low, high = high // 2, min(high, MAX_RUNS)  # low is too few, or none
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
    """Return the smallest effect that so many runs show with a power; infinite for one run."""
    from scipy.optimize import brentq

    if num_runs < 2:
        return math.inf

    def missing(effect: float) -> float:
        return (
            power_of_t_test(effect, num_runs, paired=paired, level=level, num_tasks=num_tasks)
            - power
        )

    if missing(0.0) >= 0:  # so low a level is exceeded by chance as often
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
    """Judge what the runs of two groups can tell, and how many would tell their difference.

    Both are estimates from few runs, the spread and the difference: what they give is a size, no
    promise.

    Raises
    ------
    DataError
        If a task has fewer than two runs, or they have not the same tasks.
    """
    ones, twos = checked_scores(first), checked_scores(second)
    if len(ones) != len(twos) or min(map(len, [*ones, *twos])) < 2:
        raise DataError(
            f"power_of_groups: got {list(map(len, ones))} and {list(map(len, twos))} runs of the"
            " tasks, expected the same tasks and two runs of each."
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
    """Return the effect at which a two-sided t-test of so many runs begins to see one."""
    from scipy.stats import t

    freedom = groups * num_tasks * (num_runs - 1)
    return float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(groups / (num_runs * num_tasks))
