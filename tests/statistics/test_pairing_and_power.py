"""Paired and unpaired differences, permutations and power agree with scipy and simulations."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from ratchet.errors import DataError
from ratchet.statistics import (
    adjust_for_many,
    aggregate_difference,
    detectable_effect,
    interquartile_mean,
    mean,
    needed_runs,
    permutation_test,
    power_of_groups,
    power_of_t_test,
)

few_scores = st.lists(st.floats(0, 1), min_size=2, max_size=5)
FIRST = [[0.61, 0.63, 0.66, 0.68, 0.79], [0.1, 0.2, 0.4, 0.3, 0.2]]
SECOND = [[0.55, 0.6, 0.61, 0.66, 0.7], [0.1, 0.15, 0.33, 0.25, 0.2]]


def test_variation_common_to_pairs_cancels_in_their_difference():
    apart = aggregate_difference(FIRST, SECOND)
    paired = aggregate_difference(FIRST, SECOND, paired=True)
    expected = interquartile_mean(np.concatenate(FIRST)) - interquartile_mean(
        np.concatenate(SECOND)
    )
    assert apart.value == paired.value == pytest.approx(expected)
    assert (apart.n, paired.n) == (20, 10)
    assert paired.high - paired.low < 0.7 * (apart.high - apart.low)
    constant = [[score - 0.1 for score in task] for task in FIRST]
    always = aggregate_difference(FIRST, constant, mean, paired=True)
    assert (always.low, always.high) == pytest.approx((0.1, 0.1))


def test_a_single_run_has_no_interval_and_pairs_must_match():
    alone = aggregate_difference([[0.5]], [[0.2]], paired=True)
    assert alone.value == pytest.approx(0.3)
    assert math.isnan(alone.low)
    with pytest.raises(DataError, match="they are pairs"):
        aggregate_difference([[0.5, 0.6]], [[0.2]], paired=True)
    with pytest.raises(DataError, match="same tasks"):
        permutation_test([[0.5]], [[0.2], [0.3]])


@settings(deadline=None, max_examples=30)
@example([0.0, 0.0], [0.0, 5e-324])
@given(few_scores, few_scores)
def test_the_reversed_difference_is_its_negative(first, second):
    there = aggregate_difference([first], [second], num_resamples=10)
    back = aggregate_difference([second], [first], num_resamples=10)
    assert there.value == pytest.approx(-back.value)
    assert permutation_test([first], [second]) == permutation_test([second], [first])


@pytest.mark.parametrize(("paired", "spread"), [(False, 1.0), (True, 0.2)])
def test_intervals_of_differences_cover_the_truth(paired, spread):
    """In the paired case, most of the variation is common to both."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(400):
        common = rng.normal(size=6) if paired else 0.0
        first, second = rng.normal(0.5, spread, 6) + common, rng.normal(0, spread, 6) + common
        found = aggregate_difference(
            [first.tolist()], [second.tolist()], paired=paired, num_resamples=400, seed=trial
        )
        covered += found.low <= 0.5 <= found.high
    assert 0.9 <= covered / 400 <= 0.995


def test_exact_permutations_of_few_runs_match_scipy():
    one, two = np.array(FIRST[0]), np.array(SECOND[0])
    apart = stats.permutation_test((one, two), lambda a, b: a.mean() - b.mean())
    assert permutation_test([one], [two]) == pytest.approx(apart.pvalue)
    flipped = stats.permutation_test(
        (one, two), lambda a, b: (a - b).mean(), permutation_type="samples"
    )
    assert permutation_test([one], [two], paired=True) == pytest.approx(flipped.pvalue)
    assert permutation_test([one], [one - 1], paired=True) == 2 / 2**5


@pytest.mark.parametrize("paired", [False, True])
def test_sampled_permutations_are_close_to_exact_ones(paired):
    exact = permutation_test(FIRST, SECOND, paired=paired, num_permutations=10**6)
    drawn = permutation_test(FIRST, SECOND, paired=paired, num_permutations=500, seed=2)
    assert drawn == pytest.approx(exact, abs=0.07)
    assert drawn != exact


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("scale", "shift"), [(1e-9, 0.0), (1e-14, 0.0), (1.0, 1e9), (1e6, -1e12)])
def test_permutation_tests_are_invariant_under_scale_and_shift(paired, scale, shift):
    first, second = [1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0, 7.5]
    there = ([[scale * x + shift for x in group]] for group in (first, second))
    assert permutation_test(*there, paired=paired) == permutation_test(
        [first], [second], paired=paired
    )


def test_runs_are_permuted_within_their_task():
    """Tasks differ widely: permuted together, they would mask the difference of the groups."""
    first, second = [[10.0, 10.1, 10.2, 10.3], [0.0]], [[9.6, 9.7, 9.8, 9.9], [0.0]]
    assert permutation_test(first, second) == pytest.approx(2 / (math.comb(8, 4) * 2) * 2)


def test_the_false_positive_rate_is_nominal():
    rng = np.random.default_rng(4)
    chances = [
        permutation_test([rng.normal(size=5).tolist()], [rng.normal(size=5).tolist()])
        for _ in range(400)
    ]
    assert np.mean(np.array(chances) <= 0.1) == pytest.approx(0.1, abs=0.04)


def test_a_correction_never_lowers_p_values():
    chances = [0.2, 0.01, 0.04]
    assert all(a >= b for a, b in zip(adjust_for_many(chances), chances, strict=True))
    assert adjust_for_many([]) == []
    assert adjust_for_many([0.03]) == [0.03]


@pytest.mark.parametrize(("paired", "num_tasks"), [(False, 1), (True, 1), (False, 3)])
def test_power_matches_simulated_t_tests(paired, num_tasks):
    rng = np.random.default_rng(2)
    effect, num_runs, trials = 0.9, 8, 20_000
    shape = (trials, num_tasks, num_runs)
    first, second = rng.normal(effect, 1, shape), rng.normal(0, 1, shape)
    if paired:
        first, second = rng.normal(effect, 1, shape), np.zeros(shape)
    groups = 1 if paired else 2
    freedom = groups * num_tasks * (num_runs - 1)
    squares = ((first - first.mean(2, keepdims=True)) ** 2).sum((1, 2)) + (
        (second - second.mean(2, keepdims=True)) ** 2
    ).sum((1, 2))
    gap = (first.mean(2) - second.mean(2)).mean(1)
    t = gap / np.sqrt(squares / freedom * groups / (num_runs * num_tasks))
    seen = np.mean(np.abs(t) > stats.t.ppf(0.975, freedom))
    said = power_of_t_test(effect, num_runs, paired=paired, num_tasks=num_tasks)
    assert said == pytest.approx(seen, abs=0.015)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.05, 60), st.booleans(), st.integers(1, 4))
def test_needed_runs_are_the_smallest_sufficient_number(effect, paired, num_tasks):
    needed = needed_runs(effect, paired=paired, num_tasks=num_tasks)
    assert needed is not None
    assert power_of_t_test(effect, needed, paired=paired, num_tasks=num_tasks) >= 0.8
    fewer = power_of_t_test(effect, needed - 1, paired=paired, num_tasks=num_tasks)
    assert needed == 2 or fewer < 0.8
    least = detectable_effect(needed, paired=paired, num_tasks=num_tasks)
    assert least <= effect * (1 + 1e-6)


def test_no_effect_is_required_if_chance_exceeds_the_level():
    assert detectable_effect(3, level=0.1) == 0


def test_an_unreachable_number_of_runs_is_none():
    assert needed_runs(1e-4) is None
    assert math.isinf(detectable_effect(1))


def test_power_of_groups_matches_their_spread_and_scipy():
    found = power_of_groups(FIRST, SECOND)
    pooled = np.mean([np.var(task, ddof=1) for task in (*FIRST, *SECOND)])
    assert found.spread == pytest.approx(math.sqrt(pooled))
    assert found.needed is not None
    assert found.needed > 5
    paired = power_of_groups(FIRST, SECOND, paired=True)
    assert paired.needed is not None
    assert paired.needed < found.needed
    assert paired.detectable < found.detectable
    assert power_of_groups(FIRST, FIRST).needed is None
    by_scipy = stats.ttest_rel(FIRST[0], SECOND[0]).pvalue
    one_task = power_of_groups(FIRST[:1], SECOND[:1], paired=True, level=1 - by_scipy)
    assert one_task.critical == pytest.approx(one_task.difference)
    by_scipy = stats.ttest_ind(FIRST[0], SECOND[0]).pvalue
    one_task = power_of_groups(FIRST[:1], SECOND[:1], level=1 - by_scipy)
    assert one_task.critical == pytest.approx(one_task.difference)
    same = power_of_groups([[0.5, 0.5]], [[0.4, 0.4]])
    assert (same.spread, same.detectable, same.needed) == (0, 0, 2)
    with pytest.raises(DataError, match="two runs of each"):
        power_of_groups([[0.5]], [[0.4]])


def test_a_sampled_p_value_is_never_zero():
    first, second = [list(range(100, 115))], [list(range(15))]
    assert permutation_test(first, second, num_permutations=99) == 1 / 100
