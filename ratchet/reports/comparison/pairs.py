"""Pairwise comparison of groups: differences, p-values and required seeds.

Runs are paired by seed if both groups have the same seeds and each pair the same data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ratchet.reports.comparison.options import Options
from ratchet.reports.comparison.runs import ComparedRun, Group
from ratchet.statistics.differences import (
    Power,
    adjust_for_many,
    aggregate_difference,
    permutation_test,
    power_of_groups,
)
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.stratified import Strata

SAME = "each seed with the same data in both"
OTHER_SEEDS = "not the same seeds"
OTHER_DATA = "the same seeds with other data"


@dataclass(frozen=True)
class Pair:
    """Two groups in one metric.

    Attributes
    ----------
    difference
        Interquartile mean of the first minus that of the second.
    paired, pairing
        Whether runs were paired by seed, and the reason.
    num_seeds
        Runs per task of the smaller group.
    chance
        P-value of a permutation test of the means, and ``adjusted`` for all pairs of groups; None
        with a single run.
    power
        Power with these seeds; None with a single run.
    """

    first: str
    second: str
    difference: Estimate
    paired: bool
    pairing: str
    num_seeds: int
    chance: float | None = None
    adjusted: float | None = None
    power: Power | None = None

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval of the difference excludes zero and a t-test is significant.

        The bootstrap of three seeds alone has a false positive rate of about a quarter.
        """
        if self.power is None:
            return False
        is_larger = abs(self.power.difference) > self.power.critical
        return self.difference.excludes_zero and is_larger

    @property
    def needed(self) -> int | None:
        """Seeds per group required to distinguish them: more than available if these do not.

        None without a spread, without a difference, or above the maximum.
        """
        if self.power is None or self.power.needed is None or self.is_told_apart:
            return None if self.power is None else self.power.needed
        return max(self.power.needed, self.num_seeds + 1)


def compare_pairs(
    groups: Sequence[Group], scores: Sequence[Strata], options: Options
) -> list[Pair]:
    """Compare all pairs of groups by their scores, by task in the order of their runs."""
    pairs = [
        _compare(one, two, options)
        for one, two in itertools.combinations(zip(groups, scores, strict=True), 2)
    ]
    chances = [pair.chance for pair in pairs if pair.chance is not None]
    adjusted = iter(adjust_for_many(chances))
    return [
        pair if pair.chance is None else replace(pair, adjusted=next(adjusted)) for pair in pairs
    ]


def pairing_of(first: Group, second: Group) -> str:
    """Return :data:`SAME` if runs of two groups are pairs, else the reason why not."""
    for one, two in zip(first.tasks, second.tasks, strict=True):
        ours, theirs = _by_seed(one), _by_seed(two)
        if ours.keys() != theirs.keys():
            return OTHER_SEEDS
        if any(ours[seed].data_hashes != theirs[seed].data_hashes for seed in ours):
            return OTHER_DATA
    return SAME


def _by_seed(runs: Sequence[ComparedRun]) -> dict[int, ComparedRun]:
    return {run.seed: run for run in runs}


def _compare(one: tuple[Group, Strata], two: tuple[Group, Strata], options: Options) -> Pair:
    (first, ours), (second, theirs) = one, two
    pairing = pairing_of(first, second)
    paired = pairing == SAME
    if paired:
        ours, theirs = _in_order_of_seeds(first, ours), _in_order_of_seeds(second, theirs)
    difference = aggregate_difference(
        ours,
        theirs,
        paired=paired,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        seed=options.seed,
    )
    num_seeds = min(map(len, [*ours, *theirs]))
    pair = Pair(first.label, second.label, difference, paired, pairing, num_seeds)
    if num_seeds < 2:
        return pair
    return replace(
        pair,
        chance=permutation_test(ours, theirs, paired=paired, seed=options.seed),
        power=power_of_groups(
            ours, theirs, paired=paired, level=options.level, power=options.power
        ),
    )


def _in_order_of_seeds(group: Group, scores: Strata) -> list[list[float]]:
    return [
        [score for _, score in sorted(zip([run.seed for run in task], own, strict=True))]
        for task, own in zip(group.tasks, scores, strict=True)
    ]
