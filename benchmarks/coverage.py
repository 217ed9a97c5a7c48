"""Size of the tests and coverage of the intervals of ``ratchet.statistics``, by simulation.

    OMP_NUM_THREADS=1 python benchmarks/coverage.py [REPETITIONS] [SEEDS …]

The default is 200 repetitions with 8 seeds, in about two minutes; docs/guides/statistics.md shows
2,000 repetitions with 5, 8 and 20 seeds. Tests are at 5 %, intervals at 95 %. The peer is scipy's
t-test, Welch's or that of pairs, of the hypothesis that the means are equal.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_1samp, ttest_ind

from ratchet.statistics import (
    Contrast,
    Estimate,
    interquartile_mean,
    iqm_difference,
    mean,
    median,
    permutation_tests,
    probability_of_improvement,
    stratified_interval,
)

Scores = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Scores]

LARGE = 1_000_000
"""Draws that stand for a distribution, whose aggregates count as true."""
RESAMPLES, PERMUTATIONS = 2_000, 2_000
LEVEL = 0.05
ROUNDING = 1e-12
_E = math.exp(0.5)
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "wide normal": lambda rng, n: 5 * rng.normal(size=n),
    "skewed": lambda rng, n: rng.lognormal(size=n) - _E,
    "wide skewed": lambda rng, n: 5 * (rng.lognormal(size=n) - _E),
    "skewed down": lambda rng, n: _E - rng.lognormal(size=n),
    "two modes": lambda rng, n: (
        np.where(rng.random(n) < 0.25, 0.5, 0.9) + 0.01 * rng.normal(size=n)
    ),
    "narrow": lambda rng, n: 0.02 * rng.normal(size=n),
    "ceiling": lambda rng, n: rng.binomial(300, 0.997, size=n) / 300,
    "rare collapse": lambda rng, n: np.where(rng.random(n) < 0.03, 0.9, 1.0),
}
"""Scores of runs; "wide" has a spread five times as large."""
GROUPS = [
    ("normal", "normal"),
    ("skewed", "skewed"),
    ("two modes", "two modes"),
    ("normal", "wide normal"),
    ("skewed", "wide skewed"),
    ("skewed", "skewed down"),
    ("two modes", "narrow"),
    ("ceiling", "ceiling"),
    ("ceiling", "rare collapse"),
]
GAPS: dict[str, Draw] = {
    **{name: SHAPES[name] for name in ("normal", "skewed", "two modes", "skewed down")},
    "ceilings": lambda rng, n: SHAPES["ceiling"](rng, n) - SHAPES["ceiling"](rng, n),
    "collapse": lambda rng, n: (
        0.04 - np.where(rng.random(n) < 0.1, 0.4, 0.0) + 0.005 * rng.normal(size=n)
    ),
}
"""Differences of the two runs of a seed."""
FAMILIES = {
    "five arms, equal spreads": (1, [1] * 5),
    "baseline five times as wide": (5, [1] * 5),
    "one arm five times as wide": (1, [5, 1, 1, 1, 1]),
    "all arms five times as wide": (1, [5] * 5),
}
"""Spreads of a baseline and of five arms with equal centres."""


def contains(estimate: Estimate, value: float) -> bool:
    """Return whether an interval contains a value, up to rounding."""
    return estimate.low - ROUNDING <= value <= estimate.high + ROUNDING


def percent(hits: Sequence[bool]) -> str:
    """Format the share of hits."""
    return f"{100 * float(np.mean(hits)):.1f}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    print(f"\n**{title}**\n")
    print("\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)


def _moved(strata: list[list[float]], shift: float) -> list[list[float]]:
    return [[score + shift for score in task] for task in strata]


class Simulation:
    """Repetitions with a number of seeds; ``rng`` draws the scores."""

    def __init__(self, repetitions: int, num_seeds: int) -> None:
        self.repetitions = repetitions
        self.num_seeds = num_seeds
        self.rng = np.random.default_rng([2026, num_seeds])

    def print_groups(self) -> None:
        """Print sizes and coverages of comparisons of two groups."""
        rows = [[f"{one}, {two}", *self._group_cells(one, two)] for one, two in GROUPS]
        columns = ["groups", "t-test", "rank test", "difference of IQMs", "P(first better)"]
        print_table(f"Two groups of {self.num_seeds} seeds", columns, rows)

    def _group_cells(self, one: str, two: str) -> list[str]:
        first, second = (SHAPES[name](self.rng, LARGE) for name in (one, two))
        gap = float(interquartile_mean(first) - interquartile_mean(second))
        better = float(np.mean(0.5 * (np.sign(first - second) + 1)))
        shift = float(np.median(first - second))  # as likely better as worse, unless discrete
        is_true = one == two or "ceiling" not in one
        by_means, rejected, covered, probable = [], [], [], []
        for repetition in range(self.repetitions):
            ours, theirs = (self._strata(SHAPES[name]) for name in (one, two))
            (centred,) = _moved(ours, float(second.mean() - first.mean()))
            t_test = ttest_ind(centred, theirs[0], equal_var=False)
            by_means.append(bool(t_test.pvalue <= LEVEL))
            rejected.append(self._rejects([Contrast(_moved(ours, -shift), theirs)], repetition))
            difference, chance = (
                estimator(ours, theirs, num_resamples=RESAMPLES, seed=repetition)
                for estimator in (iqm_difference, probability_of_improvement)
            )
            covered.append(contains(difference, gap))
            probable.append(contains(chance, better))
        size = percent(rejected) if is_true else "–"
        truth = f"{100 * better:.0f} %"
        return [percent(by_means), size, percent(covered), f"{percent(probable)} of {truth}"]

    def print_pairs(self) -> None:
        """Print sizes and coverages of comparisons of two groups paired by seed."""
        rows = [[name, *self._pair_cells(gap)] for name, gap in GAPS.items()]
        columns = ["differences of pairs", "t-test", "rank test", "IQM of differences"]
        print_table(f"{self.num_seeds} pairs of runs", columns, rows)

    def _pair_cells(self, gap: Draw) -> list[str]:
        large = gap(self.rng, LARGE)
        shift = float(np.median(large + self.rng.permutation(large))) / 2
        shift = shift if abs(shift) > 1 / LARGE else 0.0
        truth = float(interquartile_mean(large))
        by_means, rejected, covered = [], [], []
        for repetition in range(self.repetitions):
            gaps, zeros = self._strata(gap), [[0.0] * self.num_seeds]
            by_means.append(bool(ttest_1samp(gaps[0], large.mean()).pvalue <= LEVEL))
            test = Contrast(_moved(gaps, -shift), zeros, paired=True)
            rejected.append(self._rejects([test], repetition))
            estimate = iqm_difference(
                gaps, zeros, paired=True, num_resamples=RESAMPLES, seed=repetition
            )
            covered.append(contains(estimate, truth))
        return [percent(by_means), percent(rejected), percent(covered)]

    def print_aggregates(self) -> None:
        """Print coverages of the aggregates of one group."""
        aggregates = {"IQM": interquartile_mean, "median": median, "mean": mean}
        rows = []
        for name in ("normal", "skewed", "two modes", "ceiling", "rare collapse"):
            large = SHAPES[name](self.rng, LARGE)
            truths = {key: float(aggregate(large)) for key, aggregate in aggregates.items()}
            drawn = [self._strata(SHAPES[name]) for _ in range(self.repetitions)]
            cells = []
            for key, aggregate in aggregates.items():
                estimates = [
                    stratified_interval(scores, aggregate, num_resamples=RESAMPLES, seed=seed)
                    for seed, scores in enumerate(drawn)
                ]
                cells.append(percent([contains(each, truths[key]) for each in estimates]))
            rows.append([name, *cells])
        print_table(f"One group of {self.num_seeds} seeds", ["group", *aggregates], rows)

    def print_families(self) -> None:
        """Print the chance that any of five true hypotheses is rejected."""
        rows = []
        for name, (spread, spreads) in FAMILIES.items():
            cells = []
            for paired in (False, True):
                rejected = []
                for repetition in range(self.repetitions):
                    base, *arms = (self._normal(each) for each in (spread, *spreads))
                    contrasts = [Contrast(arm, base, paired) for arm in arms]
                    rejected.append(self._rejects(contrasts, repetition))
                cells.append(percent(rejected))
            rows.append([name, *cells])
        title = f"Any of five tests, corrected, with {self.num_seeds} seeds"
        print_table(title, ["spreads", "not paired", "paired"], rows)

    def _strata(self, shape: Draw) -> list[list[float]]:
        return [shape(self.rng, self.num_seeds).tolist()]

    def _normal(self, spread: float) -> list[list[float]]:
        return self._strata(lambda rng, n: spread * rng.normal(size=n))

    def _rejects(self, contrasts: Sequence[Contrast], seed: int) -> bool:
        tests = permutation_tests(contrasts, num_permutations=PERMUTATIONS, seed=seed)
        return min(tests.adjusted) <= LEVEL + ROUNDING


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repetitions", nargs="?", type=int, default=200)
    parser.add_argument("seeds", nargs="*", type=int, default=[8])
    arguments = parser.parse_args()
    for num_seeds in arguments.seeds:
        simulation = Simulation(arguments.repetitions, num_seeds)
        simulation.print_groups()
        simulation.print_pairs()
        simulation.print_aggregates()
        simulation.print_families()


if __name__ == "__main__":
    main()
