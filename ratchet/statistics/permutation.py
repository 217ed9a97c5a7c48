"""Permutation tests of differences of means, corrected for their number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.differences import checked_pair, standard_errors
from ratchet.statistics.stratified import FloatArray, Strata, mean

MAX_EXACT = 20_000
"""Up to this number, all permutations are enumerated; above it, they are sampled."""
_BELOW = 1 - 1e-12  # equal statistics may differ by rounding
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
    """Return the two-sided p-value of the difference of two means under permutation.

    Parameters and errors as in :func:`permutation_tests`.
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
    """Test differences of means by permutation and correct for their number (max-T).

    Paired runs are swapped within their pairs. Other runs exchange their groups within their task.
    All permutations are enumerated if there are at most ``num_permutations`` and all contrasts have
    equal numbers of runs; otherwise that number is sampled. Contrasts of equal shape are permuted
    together, which allows for the dependence of paired ones that share a group.

    Raises
    ------
    DataError
        As :func:`mean_difference`, and if a task has a single run: it has no standard error.

    Notes
    -----
    The test statistic is the difference over its standard error in the same permutation. The test
    is exact if the runs of a pair, or of two groups, are exchangeable, and asymptotically valid for
    equal means with unequal spreads: Janssen, "Studentized permutation tests for non-i.i.d.
    hypotheses" (1997).
    Free step-down max-T: Westfall and Young, "Resampling-based multiple testing" (1993),
    algorithm 2.8.
    """
    shapes = [_shape_of(each) for each in contrasts]
    is_exact = len(set(shapes)) == 1 and shapes[0].num_ways <= num_permutations
    orders = {
        shape: shape.enumerate() if is_exact else shape.sample(num_permutations, seed)
        for shape in dict.fromkeys(shapes)
    }
    statistics = np.array(
        [_statistics(each, *orders[shape]) for each, shape in zip(contrasts, shapes, strict=True)]
    )
    num_used = statistics.shape[1] if contrasts else 0
    return PermutationTests(
        chances=[float(np.mean(each >= each[0])) for each in statistics],
        adjusted=_step_down(statistics),
        least=[float(np.mean(each >= each.max() * _BELOW)) for each in statistics],
        num_permutations=num_used,
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

    Permutations are indices [R, N] of the first group and [R, K] of the second into the runs of
    both, the first group's before the second's. The first permutation is the observed order.
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

    def enumerate(self) -> tuple[Indices, Indices]:
        """Return all permutations."""
        if self.paired:
            num_pairs = sum(self.ones)
            return self._swapped(np.arange(2**num_pairs)[:, None] >> np.arange(num_pairs) & 1)
        tasks = [
            list(itertools.combinations(runs, size))
            for runs, size in zip(self._members(), self.ones, strict=True)
        ]
        chosen = [list(itertools.chain(*each)) for each in itertools.product(*tasks)]
        return self._completed(np.array(chosen, dtype=np.int64))

    def sample(self, count: int, seed: int) -> tuple[Indices, Indices]:
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
        return self._completed(np.concatenate(parts, axis=1))

    def _members(self) -> list[list[int]]:
        """List the indices of the runs of each task, the first group's before the second's."""
        starts = np.cumsum([0, *self.ones, *self.twos]).tolist()
        count = len(self.ones)
        return [
            [*range(starts[k], starts[k + 1]), *range(starts[count + k], starts[count + k + 1])]
            for k in range(count)
        ]

    def _swapped(self, swaps: Indices) -> tuple[Indices, Indices]:
        num_pairs = swaps.shape[1]
        indices = np.arange(num_pairs)
        return indices + num_pairs * swaps, indices + num_pairs * (1 - swaps)

    def _completed(self, chosen: Indices) -> tuple[Indices, Indices]:
        """Return the chosen runs and, for each permutation, all others, in the order of tasks."""
        by_task = np.concatenate(self._members())
        is_other = np.ones((len(chosen), len(by_task)), dtype=bool)
        np.put_along_axis(is_other, chosen, values=False, axis=1)
        others = np.nonzero(is_other[:, by_task])[1].reshape(len(chosen), -1)
        return chosen, by_task[others]


def _shape_of(contrast: Contrast) -> _Shape:
    ones, twos = checked_pair(contrast.first, contrast.second, paired=contrast.paired)
    if min(map(len, [*ones, *twos])) < 2:
        raise DataError(
            f"permutation tests: got {list(map(len, ones))} and {list(map(len, twos))} runs per"
            " task, expected at least two each."
        )
    return _Shape(tuple(map(len, ones)), tuple(map(len, twos)), contrast.paired)


def _statistics(contrast: Contrast, first: Indices, second: Indices) -> FloatArray:
    """Return the absolute studentised differences under permutations, the observed one first.

    Statistics that equal the observed one in exact arithmetic are made equal.
    """
    ones, twos = checked_pair(contrast.first, contrast.second, paired=contrast.paired)
    together = np.concatenate([*ones, *twos])
    middle = together.mean()  # avoids rounding of large numbers
    unit = float(np.abs(together - middle).max()) or 1.0
    scaled = (together - middle) / unit
    rounding = _rounding(ones, twos) / unit
    differences = np.abs(mean(scaled[first]) - mean(scaled[second]))
    differences[differences <= rounding] = 0.0
    errors = standard_errors(ones, twos, scaled[first], scaled[second], paired=contrast.paired)
    errors[errors <= rounding] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = np.where(differences > 0, differences / errors, 0.0)
    close = np.isclose(statistics, statistics[0], rtol=1e-9, atol=0.0)
    return np.where(close, statistics[0], statistics)


def _step_down(statistics: FloatArray) -> list[float]:
    """Return step-down max-T p-values of statistics [contrast, permutation], the observed first."""
    order = sorted(range(len(statistics)), key=lambda k: -statistics[k][0])
    adjusted, largest = [0.0] * len(order), 0.0
    for rank, k in enumerate(order):
        highest = statistics[order[rank:]].max(axis=0)
        largest = max(largest, float(np.mean(highest >= statistics[k][0] * _BELOW)))
        adjusted[k] = largest
    return adjusted


def _rounding(ones: Sequence[FloatArray], twos: Sequence[FloatArray]) -> float:
    """Return a bound on the rounding error of means that are equal in exact arithmetic."""
    tasks = [np.concatenate(pair) for pair in zip(ones, twos, strict=True)]
    widest, largest = (max(f(task) for task in tasks) for f in (np.ptp, lambda t: np.abs(t).max()))
    return float(1e-9 * widest + 4 * np.finfo(np.float64).eps * largest)
