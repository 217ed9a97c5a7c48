"""Aggregates over runs agree with published values and scipy; bootstrap intervals are valid."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from ratchet.errors import DataError
from ratchet.statistics import (
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
    stratified_interval,
)
from ratchet.statistics.stratified import quantile_levels, separation_bound

scores = st.lists(st.floats(-10, 10), min_size=1, max_size=30)
few_scores = st.lists(st.floats(0, 1), min_size=2, max_size=6)
tasks = st.lists(few_scores, min_size=1, max_size=3)


def test_golden_values():
    runs = [0.0, 0.5, 0.6, 0.7, 1.0]
    assert interquartile_mean(runs) == pytest.approx(0.6)
    assert interquartile_mean([0.0, 1.0, 4.0]) == pytest.approx(5 / 3)  # too few to omit one
    assert interquartile_mean([[9, 1, 2, 3], [0, 0, 0, 8]]).tolist() == [2.5, 0.0]
    assert median(runs) == 0.6
    assert mean(runs) == pytest.approx(0.56)
    assert optimality_gap([0.5, 1.0, 1.5]) == pytest.approx(0.5 / 3)
    assert optimality_gap([0.5, 1.5], target=2.0) == pytest.approx(1.0)


@settings(deadline=None)
@given(scores)
def test_interquartile_mean_equals_scipys_trimmed_mean(values):
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


@settings(deadline=None)
@given(scores, st.floats(-5, 5), st.floats(0.1, 5))
def test_interquartile_mean_shifts_and_scales_with_the_scores(values, shift, scale):
    moved = [scale * value + shift for value in values]
    expected = scale * interquartile_mean(values) + shift
    assert interquartile_mean(moved) == pytest.approx(expected, abs=1e-6)


@settings(deadline=None)
@given(scores)
def test_interquartile_mean_stays_within_the_middle_half_despite_outliers(values):
    ordered = sorted(values)
    cut = len(values) // 4
    inner = ordered[cut : len(values) - cut]
    assert inner[0] - 1e-9 <= interquartile_mean(values) <= inner[-1] + 1e-9


@settings(deadline=None)
@given(tasks, tasks)
def test_probability_of_improvement_is_the_mann_whitney_statistic(first, second):
    num_tasks = min(len(first), len(second))
    first, second = first[:num_tasks], second[:num_tasks]
    expected = [
        stats.mannwhitneyu(one, two).statistic / (len(one) * len(two))
        for one, two in zip(first, second, strict=True)
    ]
    estimate = probability_of_improvement(first, second, num_resamples=20)
    assert estimate.value == pytest.approx(np.mean(expected))
    assert estimate.n == sum(map(len, [*first, *second]))


@settings(deadline=None)
@given(tasks)
def test_probabilities_of_improvement_in_both_directions_add_up_to_one(first):
    second = [[value + 0.1 for value in task[::-1]] for task in first]
    there = probability_of_improvement(first, second, num_resamples=20)
    back = probability_of_improvement(second, first, num_resamples=20)
    assert there.value + back.value == pytest.approx(1)
    assert there.value < 0.5


def test_improvement_is_even_against_itself_and_invariant_under_monotone_maps():
    runs = [[0.1, 0.4, 0.2], [0.9, 0.8, 0.8]]
    assert probability_of_improvement(runs, runs).value == 0.5
    other = [[0.3, 0.3, 0.3], [0.85, 0.7, 0.95]]
    plain = probability_of_improvement(runs, other)
    cubed = probability_of_improvement(
        [[x**3 for x in task] for task in runs], [[x**3 for x in task] for task in other]
    )
    assert (plain.value, plain.low, plain.high) == (cubed.value, cubed.low, cubed.high)


def test_complete_separation_of_few_runs_is_weak_evidence():
    better, worse = [[3.0, 4.0, 5.0]], [[0.0, 1.0, 2.0]]
    plain = probability_of_improvement(better, worse, method="percentile")
    assert (plain.value, plain.low, plain.high) == (1, 1, 1)
    honest = probability_of_improvement(better, worse)
    assert (honest.value, honest.high) == (1, 1)
    assert honest.low < 0.5  # happens by chance in one of ten cases
    five = probability_of_improvement([[5.0, 6, 7, 8, 9]], [[0.0, 1, 2, 3, 4]])
    assert 0.6 < five.low < 0.7
    back = probability_of_improvement([[0.0, 1, 2, 3, 4]], [[5.0, 6, 7, 8, 9]])
    assert (back.value, back.low) == (0, 0)
    assert back.high == pytest.approx(1 - five.low)


def test_the_bound_of_separation_matches_a_simulation():
    """Simulate the largest of k = θ / (1 - θ) scores, with an integer k."""
    rng = np.random.default_rng(0)
    k, runs, others = 2, 4, 5
    ones = rng.random((200_000, runs, k)).max(axis=-1)
    twos = rng.random((200_000, others))
    chance = float((ones.min(axis=1) > twos.max(axis=1)).mean())
    bound = separation_bound([(runs, others)], level=1 - 2 * chance)
    assert bound <= k / (k + 1) + 5e-3
    assert separation_bound([(5, 5)], level=1 - 2 * chance) > bound
    same = separation_bound([(3, 3)], level=1 - 2 / 20)  # 1 of C(6, 3) orders
    assert same == pytest.approx(0.5, abs=1e-9)
    assert separation_bound([(3, 3), (3, 3)]) > separation_bound([(3, 3)])


@pytest.mark.parametrize("size", [(3, 7), (7, 3)])
def test_the_bound_of_separation_holds_whichever_group_has_the_larger_scores(size):
    k = 1 / (1 / separation_bound([size]) - 1)
    chances = [few / k * special.beta(few / k, n + 1) for n, few in (size, size[::-1])]
    assert max(chances) == pytest.approx(0.025)


def test_percentile_interval_of_one_task_equals_scipys():
    runs = [0.61, 0.63, 0.66, 0.68, 0.71, 0.74, 0.79, 0.8]
    ours = stratified_interval([runs], mean, method="percentile", num_resamples=100_000)
    theirs = stats.bootstrap(
        (runs,), np.mean, method="percentile", n_resamples=100_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=2e-3)
    assert ours.high == pytest.approx(theirs.high, abs=2e-3)


def test_runs_are_resampled_within_their_task():
    """If tasks were resampled together, the mean would vary with the number of each."""
    estimate = stratified_interval([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], mean)
    assert (estimate.low, estimate.value, estimate.high) == (0.5, 0.5, 0.5)


def test_intervals_depend_on_the_seed_and_expanded_ones_are_wider():
    runs = [[0.61, 0.63, 0.66, 0.68, 0.79], [0.1, 0.2, 0.4, 0.3, 0.2]]
    once, again = (stratified_interval(runs, interquartile_mean, seed=3) for _ in range(2))
    assert once == again
    assert once != stratified_interval(runs, interquartile_mean, seed=4)
    plain = stratified_interval(runs, interquartile_mean, method="percentile", seed=3)
    assert once.low < plain.low <= plain.value <= plain.high < once.high
    assert once.n == 10


def test_a_single_run_has_no_interval():
    estimate = stratified_interval([[0.7]], interquartile_mean)
    assert estimate.value == 0.7
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert "single run" in estimate.method
    against = probability_of_improvement([[0.7]], [[0.1, 0.8]])
    assert against.value == 0.5
    assert math.isnan(against.low)


@pytest.mark.parametrize("strata", [[], [[]], [[0.5], []], [[math.nan, 1.0]]])
def test_missing_runs_and_nan_are_refused(strata):
    with pytest.raises(DataError, match="expected"):
        stratified_interval(strata, mean)


def test_different_tasks_and_invalid_levels_are_refused():
    with pytest.raises(DataError, match="1 and 2 tasks"):
        probability_of_improvement([[1.0]], [[1.0], [2.0]])
    with pytest.raises(DataError, match="level"):
        stratified_interval([[1.0, 2.0]], mean, level=95)


@pytest.mark.in_turn(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_runs", "num_tasks", "aggregate", "method", "least", "most"),
    [
        (5, 1, interquartile_mean, "expanded", 0.92, 0.98),
        (5, 1, interquartile_mean, "percentile", 0.87, 0.94),
        (5, 1, mean, "expanded", 0.88, 0.95),
        (5, 1, mean, "percentile", 0.78, 0.86),  # few seeds make the plain bootstrap too narrow
        (10, 1, interquartile_mean, "expanded", 0.94, 0.99),
        (5, 6, interquartile_mean, "expanded", 0.93, 0.98),
        (5, 6, interquartile_mean, "percentile", 0.86, 0.93),
    ],
)
def test_coverage_of_intervals_is_near_its_nominal_value(
    num_runs, num_tasks, aggregate, method, least, most
):
    """The guide quotes these bounds. Runs are normal around 0, the target of every aggregate."""
    rng = np.random.default_rng(7)
    num_trials = 1000
    covered = 0
    for trial in range(num_trials):
        runs = rng.normal(size=(num_tasks, num_runs)).tolist()
        estimate = stratified_interval(
            runs, aggregate, method=method, num_resamples=1000, seed=trial
        )
        covered += estimate.low <= 0 <= estimate.high
    assert least <= covered / num_trials <= most


@pytest.mark.slow
def test_intervals_of_the_probability_of_improvement_cover_the_truth():
    """Normal runs with means half a standard deviation apart: P = Φ(0.5 / √2)."""
    rng = np.random.default_rng(8)
    truth = stats.norm.cdf(0.5 / math.sqrt(2))
    covered = 0
    for trial in range(1000):
        estimate = probability_of_improvement(
            [rng.normal(0.5, size=10).tolist()],
            [rng.normal(size=10).tolist()],
            num_resamples=1000,
            seed=trial,
        )
        covered += estimate.low <= truth <= estimate.high
    assert 0.92 <= covered / 1000 <= 0.985


@pytest.mark.parametrize("sizes", [[5], [3, 3], [2, 5, 4]])
def test_expanded_quantiles_are_those_of_t_with_the_runs_of_all_tasks(sizes):
    n, freedom = sum(sizes), sum(sizes) - len(sizes)
    upper = stats.norm.cdf(stats.t.ppf(0.95, freedom) * math.sqrt(n / freedom))
    assert quantile_levels("expanded", 0.9, sizes) == pytest.approx((1 - upper, upper))
    assert quantile_levels("percentile", 0.9, sizes) == pytest.approx((0.05, 0.95))
