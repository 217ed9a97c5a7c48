"""Power of a comparison: the difference that runs detect, and the runs that a difference requires.

The spread of runs is estimated from data, the effect never is: with the effect of the same runs,
power would be a function of their p-value and contain no information ("post-hoc power").
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.differences import checked_pair, standard_errors
from ratchet.statistics.permutation import smallest_p
from ratchet.statistics.stratified import Strata

POWER = 0.8
MAX_RUNS = 10_000


@dataclass(frozen=True)
class Power:
    """Power of a comparison of two groups by the difference of their means.

    Attributes
    ----------
    spread
        Standard deviation of a run (paired: of a pair's difference), of both groups together.
    detectable
        Smallest true difference that this number of runs finds significant with probability
        ``power``; infinite if no p-value of theirs can be significant.
    effect, needed
        A stated difference, and the runs per task and group required to detect it with probability
        ``power``; None without a stated difference or above ``MAX_RUNS``.
    level
        One minus the significance level of a single two-sided test.
    """

    spread: float
    detectable: float
    effect: float | None = None
    needed: int | None = None
    power: float = POWER
    level: float = 0.95


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
    if num_runs < 2:
        return 0.0
    groups = 1 if paired else 2
    shift = abs(effect) * math.sqrt(num_runs * num_tasks / groups)
    return _power(shift, groups * num_tasks * (num_runs - 1), level)


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
    groups = 1 if paired else 2
    shift = _detectable_shift(groups * num_tasks * (num_runs - 1), level, power)
    return shift / math.sqrt(num_runs * num_tasks / groups)


def power_of_groups(
    first: Strata,
    second: Strata,
    *,
    paired: bool = False,
    effect: float | None = None,
    level: float = 0.95,
    power: float = POWER,
) -> Power:
    """Estimate the difference of means that two groups detect, from their spread.

    Parameters
    ----------
    effect
        Difference for which to return the required runs. It must not be estimated from these runs.
    level
        One minus the significance level of a single test, not corrected for several.

    Raises
    ------
    DataError
        If a task has fewer than two runs, or the tasks differ.

    Notes
    -----
    The detectable difference is d = δ · SE, where P(abs(t) > c) = ``power`` for the noncentral t
    distribution with noncentrality δ, and c is the critical value of Student's t: Cohen,
    "Statistical power analysis for the behavioral sciences" (1988). The significance level is the
    largest p-value of a permutation test up to 1 - ``level``.
    """
    ones, twos = checked_pair(first, second, paired=paired)
    num_runs, num_tasks, groups = min(map(len, [*ones, *twos])), len(ones), 1 if paired else 2
    if num_runs < 2:
        raise DataError(
            f"power_of_groups: got {list(map(len, ones))} and {list(map(len, twos))} runs"
            " per task, expected at least two runs of each."
        )
    detectable = partial(_detectable, paired=paired, level=level, power=power, num_tasks=num_tasks)
    size = num_runs * num_tasks / groups
    together = [np.concatenate(each) for each in (ones, twos)]
    error = float(standard_errors(ones, twos, *together, paired=paired))
    is_rounding = error <= 1e-12 * np.abs(np.concatenate(together)).max()
    spread = 0.0 if is_rounding else error * math.sqrt(size)

    needed = None
    if effect:
        enough = needed_runs(
            effect / spread if spread else math.inf,
            paired=paired,
            level=level,
            power=power,
            num_tasks=num_tasks,
        )
        if enough is not None:  # p-values are discrete: few runs take some more
            needed = next(
                n for n in itertools.count(enough) if detectable(spread, n) <= abs(effect)
            )
    return Power(spread, detectable(spread, num_runs), effect, needed, power, level)


def _detectable(
    spread: float, num_runs: int, *, paired: bool, level: float, power: float, num_tasks: int
) -> float:
    """Return the difference that a number of runs per task and group detects."""
    least = smallest_p(min(num_runs, 30), paired=paired, num_tasks=num_tasks)
    attainable = least * math.floor((1 - level) / least + 1e-9)
    if attainable == 0:
        return math.inf
    groups, total = 1 if paired else 2, num_runs * num_tasks
    freedom = groups * (total - num_tasks)
    shift = _detectable_shift(freedom, 1 - attainable, power)
    return shift * spread / math.sqrt(total / groups) if spread else 0.0


def _power(shift: float, freedom: int, level: float) -> float:
    """Return the power of a two-sided t-test with a noncentrality."""
    from scipy.stats import nct, t

    if math.isinf(shift):
        return 1.0
    bound = float(t.ppf(0.5 + level / 2, freedom))
    ends = nct.sf(bound, freedom, [shift, -shift])
    return float(np.nansum(ends))  # scipy returns NaN for a negligible far tail


def _detectable_shift(freedom: int, level: float, power: float) -> float:
    """Return the smallest noncentrality with a given power; infinite without freedom."""
    from scipy.optimize import brentq

    if freedom < 1:
        return math.inf
    if _power(0.0, freedom, level) >= power:  # at this level, chance alone has the power
        return 0.0
    high = 1.0
    while _power(high, freedom, level) < power:
        high *= 2
    return float(brentq(lambda shift: _power(shift, freedom, level) - power, 0.0, high))
