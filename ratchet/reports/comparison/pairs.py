"""Pairwise comparison of groups: differences of IQMs, rank tests and detectable differences.

Runs are paired by seed if both groups have the same seeds and each pair the same data.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ratchet.reports.comparison.options import Options, with_enough_seeds
from ratchet.reports.comparison.runs import ComparedRun, Group
from ratchet.statistics.differences import iqm_difference
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.permutation import Contrast, permutation_tests, smallest_p
from ratchet.statistics.power import Power, power_of_groups
from ratchet.statistics.stratified import Strata

SAME = "each seed with the same data in both"


@dataclass(frozen=True)
class Pair:
    """Two groups in one metric.

    Attributes
    ----------
    difference
        Interquartile mean of the first minus that of the second; paired, that of the seeds'
        differences.
    paired, pairing
        Whether runs were paired by seed, and the reason.
    num_seeds
        Runs per task of the smaller group.
    chance, adjusted, least
        P-value of a rank test under permutation, that corrected for all pairs compared, and the
        smallest that these scores can attain; None with a single run.
    level
        One minus the significance level for all pairs together.
    num_permutations, is_exact
        Permutations used, and whether these are all.
    power
        Power with these seeds at a level for one of all pairs; None with a single run.
    """

    first: str
    second: str
    difference: Estimate
    paired: bool
    pairing: str
    num_seeds: int
    chance: float | None = None
    adjusted: float | None = None
    least: float | None = None
    level: float = 0.95
    num_permutations: int = 0
    is_exact: bool = True
    power: Power | None = None

    @property
    def is_told_apart(self) -> bool:
        """Whether the corrected p-value is significant."""
        return self.adjusted is not None and self.adjusted <= 1 - self.level + 1e-12

    @property
    def can_be_told_apart(self) -> bool:
        """Whether a p-value of these scores can be significant."""
        return self.least is not None and self.least <= 1 - self.level + 1e-12


def compare_pairs(
    groups: Sequence[Group], scores: Sequence[Strata], options: Options
) -> list[Pair]:
    """Compare the pairs of groups that the options name by their scores by task."""
    members = {
        group.label: (group, group_scores)
        for group, group_scores in zip(groups, scores, strict=True)
    }
    combined = [(members[one], members[two]) for one, two in compared_labels(members, options)]
    contrasts = [_contrast(one, two) for one, two in combined]
    pairs = [
        _estimate(one, two, contrast, options)
        for ((one, _), (two, _)), contrast in zip(combined, contrasts, strict=True)
    ]
    testable = [k for k, pair in enumerate(pairs) if pair.num_seeds > 1]
    tests = permutation_tests([contrasts[k] for k in testable], seed=options.seed)
    for index, k in enumerate(testable):
        pairs[k] = replace(
            pairs[k],
            chance=tests.chances[index],
            adjusted=tests.adjusted[index],
            least=tests.least[index],
            num_permutations=tests.num_permutations,
            is_exact=tests.is_exact,
            power=_power(contrasts[k], len(testable), options),
        )
    return pairs


def _power(contrast: Contrast, num_tests: int, options: Options) -> Power:
    """Estimate the power of one of several tests, at the corrected level.

    That is the level over the number of tests; if no p-value is that small, the smallest one, which
    the correction leaves significant only where the other pairs differ as well.
    """
    num_runs = min(map(len, [*contrast.first, *contrast.second]))
    least = smallest_p(min(num_runs, 30), paired=contrast.paired, num_tasks=len(contrast.first))
    alpha = 1 - options.level
    corrected = max(alpha / num_tests, least) if least <= alpha else alpha
    return power_of_groups(
        contrast.first,
        contrast.second,
        paired=contrast.paired,
        effect=options.effect,
        level=1 - corrected,
        power=options.power,
    )


def compared_labels(labels: Collection[str], options: Options) -> list[tuple[str, str]]:
    """Return the planned pairs, or all groups with each baseline, or all pairs.

    Planned groups that are not among the labels, for lack of scores, are left out.
    """
    if options.pairs:
        return [pair for pair in options.pairs if {*pair} <= {*labels}]
    if not options.baselines:
        return list(itertools.combinations(labels, 2))
    bases = [name for name in dict.fromkeys(options.baselines) if name in labels]
    return [
        (one, base) for k, base in enumerate(bases) for one in labels if one not in bases[: k + 1]
    ]


def pairing_of(first: Group, second: Group) -> str:
    """Return :data:`SAME` if runs of two groups are pairs, else the reason why not."""
    for one, two in zip(first.tasks, second.tasks, strict=True):
        ours, theirs = _by_seed(one), _by_seed(two)
        if ours.keys() != theirs.keys():
            return "not the same seeds"
        if any(ours[seed].data_hashes != theirs[seed].data_hashes for seed in ours):
            return "the same seeds with other data"
    return SAME


def _by_seed(runs: Sequence[ComparedRun]) -> dict[int, ComparedRun]:
    return {run.seed: run for run in runs}


def _contrast(one: tuple[Group, Strata], two: tuple[Group, Strata]) -> Contrast:
    """Return the scores of two groups; paired ones in the order of their seeds."""
    (first, ours), (second, theirs) = one, two
    paired = pairing_of(first, second) == SAME
    if paired:
        ours, theirs = _in_order_of_seeds(first, ours), _in_order_of_seeds(second, theirs)
    return Contrast(ours, theirs, paired)


def _estimate(first: Group, second: Group, contrast: Contrast, options: Options) -> Pair:
    """Estimate the difference of two groups, without tests."""
    difference = iqm_difference(
        contrast.first,
        contrast.second,
        paired=contrast.paired,
        level=options.level,
        method=options.method,
        num_resamples=options.num_resamples,
        seed=options.seed,
    )
    sizes = list(map(len, [*contrast.first, *contrast.second]))
    return Pair(
        first.label,
        second.label,
        with_enough_seeds(difference, sizes),
        contrast.paired,
        pairing_of(first, second),
        min(sizes),
        level=options.level,
    )


def _in_order_of_seeds(group: Group, scores: Strata) -> list[list[float]]:
    return [
        [score for _, score in sorted(zip([run.seed for run in task], task_scores, strict=True))]
        for task, task_scores in zip(group.tasks, scores, strict=True)
    ]
