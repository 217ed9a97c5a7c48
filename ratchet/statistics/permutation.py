"""Rank tests of two groups of runs under permutation, corrected for their number.

Tests of means reject true hypotheses too often where scores are skewed or collapse now and then, as
those of trained agents do; tests of ranks do not (see the guide on statistics).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.differences import checked_pair
from ratchet.statistics.stratified import FloatArray, Strata

MAX_EXACT = 20_000
"""Up to this number, all permutations are enumerated; above it, they are sampled."""
_BELOW = 1 - 1e-12  # equal statistics may differ by rounding
_ROUNDING = 1e-12
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Contrast:
    """Two groups of runs to be tested for a difference; ``paired`` as in the functions here."""

    first: Strata
    second: Strata
    paired: bool = False


@dataclass(frozen=True)
class PermutationTests:
    """Results of permutation tests of several contrasts.

    Attributes
    ----------
    chances
        Two-sided p-value of each contrast on its own.
    adjusted
        P-values corrected for the number of contrasts, never below those of ``chances``.
    least
        Smallest p-value that any assignment of these scores to the two groups of each contrast
        attains; above :func:`smallest_p` if scores are equal.
    num_permutations
        Permutations used, the observed order included.
    is_exact
        Whether these are all permutations; otherwise they were sampled.
    """

    chances: Sequence[float]
    adjusted: Sequence[float]
    least: Sequence[float]
    num_permutations: int
    is_exact: bool


def permutation_test(
    first: Strata,
    second: Strata,
    *,
    paired: bool = False,
    num_permutations: int = MAX_EXACT,
    seed: int = 0,
) -> float:
    """Return the two-sided p-value of one contrast.

    Hypothesis, parameters and errors as in :func:`permutation_tests`.
    """
    contrast = Contrast(first, second, paired)
    tests = permutation_tests([contrast], num_permutations=num_permutations, seed=seed)
    return tests.chances[0]


def permutation_tests(
    contrasts: Sequence[Contrast],
    *,
    num_permutations: int = MAX_EXACT,
    seed: int = 0,
) -> PermutationTests:
    """Test by permutation whether one group tends to be better; correct for many tests (min-P).

    Unpaired, the hypothesis is that a run of the first group is as likely better as worse than one
    of the second, ties counting half; spreads may differ. Runs exchange their groups within their
    task. Paired, it is that the sum of two pairs' differences is as likely positive as negative;
    the runs of each pair are swapped. All permutations are enumerated if there are at most
    ``num_permutations`` and all contrasts have equal numbers of runs; otherwise that number is
    sampled. Contrasts of equal shape are permuted together, which allows for the dependence of
    paired ones that share a group.

    Raises
    ------
    DataError
        If a task has a single run, or the tasks of two groups differ or, paired, their runs.

    Notes
    -----
    Unpaired: the studentised statistic of Brunner and Munzel, "The nonparametric Behrens-Fisher
    problem" (2000), under permutation by Neubert and Brunner, "A studentized permutation test for
    the non-parametric Behrens-Fisher problem" (2007), here averaged over tasks.
    Paired: the signed ranks of Wilcoxon, "Individual comparisons by ranking methods" (1945), with
    equal pairs as in Pratt (1959) and tasks weighted as in van Elteren (1960).
    Free step-down min-P: Westfall and Young, "Resampling-based multiple testing" (1993),
    algorithm 2.8.
    """
    if not contrasts:
        return PermutationTests([], [], [], 0, is_exact=False)
    shapes = [_shape_of(each) for each in contrasts]
    is_exact = len(set(shapes)) == 1 and shapes[0].num_ways <= num_permutations
    orders = {
        shape: shape.enumerate() if is_exact else shape.sample(num_permutations, seed)
        for shape in dict.fromkeys(shapes)
    }
    chances = np.array(
        [
            _chances(_statistics(each, orders[shape]))
            for each, shape in zip(contrasts, shapes, strict=True)
        ]
    )
    return PermutationTests(
        chances=chances[:, 0].tolist(),
        adjusted=_step_down(chances),
        least=chances.min(axis=1).tolist(),
        num_permutations=chances.shape[1],
        is_exact=is_exact,
    )


def smallest_p(num_runs: int, *, paired: bool = False, num_tasks: int = 1) -> float:
    """Return the smallest two-sided p-value of a permutation test of two groups of equal size."""
    return _Shape((num_runs,) * num_tasks, (num_runs,) * num_tasks, paired).least


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


@dataclass(frozen=True)
class _Shape:
    """Numbers of runs per task of two groups; determines the possible permutations.

    Permutations are indices [R, N] of the first group into the runs of both, the first group's
    before the second's. The first permutation is the observed order.
    """

    ones: tuple[int, ...]
    twos: tuple[int, ...]
    paired: bool

    @property
    def num_ways(self) -> int:
        """Number of permutations."""
        if self.paired:
            return 1 << sum(self.ones)
        return math.prod(math.comb(n + k, n) for n, k in zip(self.ones, self.twos, strict=True))

    @property
    def least(self) -> float:
        """Smallest p-value: with equal numbers of runs, exchanged groups differ as much."""
        return (2 if self.paired or self.ones == self.twos else 1) / self.num_ways

    def enumerate(self) -> Indices:
        """Return all permutations."""
        if self.paired:
            num_pairs = sum(self.ones)
            return self._swapped(np.arange(2**num_pairs)[:, None] >> np.arange(num_pairs) & 1)
        tasks = [
            list(itertools.combinations(runs, size))
            for runs, size in zip(self._members(), self.ones, strict=True)
        ]
        chosen = [list(itertools.chain(*each)) for each in itertools.product(*tasks)]
        return np.array(chosen, dtype=np.int64)

    def sample(self, count: int, seed: int) -> Indices:
        """Return the observed order and sampled permutations."""
        rng = np.random.default_rng(seed)
        if self.paired:
            swaps = rng.integers(2, size=(count + 1, sum(self.ones)))
            swaps[0] = 0
            return self._swapped(swaps)
        parts = []
        for runs, size in zip(self._members(), self.ones, strict=True):
            shuffled = rng.permuted(np.broadcast_to(runs, (count, len(runs))), axis=1)[:, :size]
            parts.append(np.concatenate([[runs[:size]], shuffled]))
        return np.concatenate(parts, axis=1)

    def _members(self) -> list[list[int]]:
        """List the indices of the runs of each task, the first group's before the second's."""
        starts = np.cumsum([0, *self.ones, *self.twos]).tolist()
        count = len(self.ones)
        return [
            [*range(starts[k], starts[k + 1]), *range(starts[count + k], starts[count + k + 1])]
            for k in range(count)
        ]

    def _swapped(self, swaps: Indices) -> Indices:
        num_pairs = swaps.shape[1]
        return np.asarray(np.arange(num_pairs) + num_pairs * swaps)


def _shape_of(contrast: Contrast) -> _Shape:
    ones, twos = checked_pair(contrast.first, contrast.second, paired=contrast.paired)
    if min(map(len, [*ones, *twos])) < 2:
        raise DataError(
            f"permutation tests: got {list(map(len, ones))} and {list(map(len, twos))} runs per"
            " task, expected at least two each."
        )
    return _Shape(tuple(map(len, ones)), tuple(map(len, twos)), contrast.paired)


def _statistics(contrast: Contrast, orders: Indices) -> FloatArray:
    """Return the statistics of a contrast under permutations, the observed one first."""
    ones, twos = checked_pair(contrast.first, contrast.second, paired=contrast.paired)
    return (_signed_ranks if contrast.paired else _separation)(ones, twos, orders)


def _separation(
    ones: Sequence[FloatArray], twos: Sequence[FloatArray], first: Indices
) -> FloatArray:
    """Return |P(first better) − ½| over its standard error for each permutation [R, N]."""
    scores = np.concatenate([*ones, *twos])
    is_first = np.zeros((len(first), len(scores)))
    np.put_along_axis(is_first, first, 1.0, axis=1)
    effect, variance = np.zeros(len(first)), np.zeros(len(first))
    starts = np.cumsum([0, *map(len, [*ones, *twos])])
    for task in range(len(ones)):
        here = [*range(starts[task], starts[task + 1])]
        here += range(starts[len(ones) + task], starts[len(ones) + task + 1])
        wins = 0.5 * (np.sign(scores[here][:, None] - scores[here]) + 1)
        ours, theirs = is_first[:, here], 1 - is_first[:, here]
        for group, others, sign in ((ours, theirs, 1.0), (theirs, ours, -1.0)):
            placements = others @ wins.T / others.sum(axis=1, keepdims=True)
            size = group.sum(axis=1)
            average = (group * placements).sum(axis=1) / size
            effect += sign * average / 2  # one average is P(first better), the other 1 − it
            squares = group * (placements - average[:, None]) ** 2
            variance += squares.sum(axis=1) / (size * (size - 1))
    effect, error = np.abs(effect), np.sqrt(variance)
    effect[effect < _ROUNDING], error[error < _ROUNDING] = 0.0, 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(effect > 0, effect / error, 0.0)


def _signed_ranks(
    ones: Sequence[FloatArray], twos: Sequence[FloatArray], first: Indices
) -> FloatArray:
    """Return the absolute sum of Wilcoxon's signed ranks for each permutation [R, N]."""
    from scipy.stats import rankdata

    ranks = []
    for one, two in zip(ones, twos, strict=True):
        difference = one - two
        largest = float(np.abs([one, two]).max())
        unit = 1e-9 * float(np.abs(difference).max()) + 4 * np.finfo(np.float64).eps * largest
        steps = np.rint(difference / (unit or 1.0))  # equal if equal in exact arithmetic
        ranks.append(np.sign(steps) * rankdata(np.abs(steps)) / (len(one) + 1))
    signs = np.where(first < first.shape[1], 1.0, -1.0)  # the second group's runs come after N
    return np.asarray(np.abs(signs @ np.concatenate(ranks)))


def _chances(statistics: FloatArray) -> FloatArray:
    """Return each permutation's p-value, with that of the observed order first."""
    below = np.searchsorted(np.sort(statistics), statistics * _BELOW)
    return np.asarray((len(statistics) - below) / len(statistics))


def _step_down(chances: FloatArray) -> list[float]:
    """Return step-down min-P p-values of p-values [contrast, permutation], the observed first."""
    order = sorted(range(len(chances)), key=lambda k: float(chances[k][0]))
    adjusted, largest = [0.0] * len(order), 0.0
    for rank, k in enumerate(order):
        lowest = chances[order[rank:]].min(axis=0)
        largest = max(largest, float(np.mean(lowest <= chances[k][0])))
        adjusted[k] = largest
    return adjusted
