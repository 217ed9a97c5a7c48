"""Paired and unpaired differences, rank tests and power agree with scipy and simulations."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from ratchet.errors import DataError
from ratchet.statistics import (
    Contrast,
    adjust_for_many,
    detectable_effect,
    interquartile_mean,
    iqm_difference,
    needed_runs,
    permutation_test,
    permutation_tests,
    power_of_groups,
    power_of_t_test,
    smallest_p,
)
from ratchet.statistics.permutation import _separation, _Shape, _step_down

few_scores = st.lists(st.floats(0, 1), min_size=2, max_size=5)
FIRST = [[0.61, 0.63, 0.66, 0.68, 0.79], [0.1, 0.2, 0.4, 0.3, 0.2]]
SECOND = [[0.55, 0.6, 0.61, 0.66, 0.7], [0.1, 0.15, 0.33, 0.25, 0.2]]


def test_variation_common_to_pairs_cancels_in_their_difference():
    apart = iqm_difference(FIRST, SECOND)
    paired = iqm_difference(FIRST, SECOND, paired=True)
    one, two = np.concatenate(FIRST), np.concatenate(SECOND)
    assert apart.value == pytest.approx(interquartile_mean(one) - interquartile_mean(two))
    assert paired.value == pytest.approx(interquartile_mean(one - two))
    assert (apart.n, paired.n) == (20, 10)
    assert paired.high - paired.low < 0.7 * (apart.high - apart.low)
    constant = [[score - 0.1 for score in task] for task in FIRST]
    always = iqm_difference(FIRST, constant, paired=True)
    assert (always.low, always.high) == pytest.approx((0.1, 0.1))


def test_a_single_run_has_no_interval_and_pairs_must_match():
    alone = iqm_difference([[0.5]], [[0.2]], paired=True)
    assert alone.value == pytest.approx(0.3)
    assert math.isnan(alone.low)
    with pytest.raises(DataError, match="they are pairs"):
        iqm_difference([[0.5, 0.6]], [[0.2]], paired=True)
    with pytest.raises(DataError, match="same tasks"):
        permutation_test([[0.5]], [[0.2], [0.3]])


@settings(deadline=None, max_examples=30)
@example([0.0, 0.0], [0.0, 5e-324])
@given(few_scores, few_scores)
def test_the_reversed_difference_is_its_negative(first, second):
    there = iqm_difference([first], [second], num_resamples=10)
    back = iqm_difference([second], [first], num_resamples=10)
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
        found = iqm_difference(
            [first.tolist()], [second.tolist()], paired=paired, num_resamples=400, seed=trial
        )
        covered += found.low <= 0.5 <= found.high
    assert 0.9 <= covered / 400 <= 0.995


def brunner_munzel(first, second, axis=-1):
    """Return the absolute statistic by the ranks of its definition."""
    one, two = np.broadcast_arrays(np.moveaxis(first, axis, -1), np.moveaxis(second, axis, -1))
    n = one.shape[-1]
    ranks = stats.rankdata(np.concatenate([one, two], axis=-1), axis=-1)
    parts = []
    for scores, all_ranks in ((one, ranks[..., :n]), (two, ranks[..., n:])):
        placed = all_ranks - stats.rankdata(scores, axis=-1)
        parts.append((all_ranks.mean(-1), placed.var(-1, ddof=1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(parts[0][1] + parts[1][1])
        return np.abs(np.nan_to_num((parts[0][0] - parts[1][0]) / error, nan=0.0))


def test_few_runs_have_the_p_values_of_all_permutations():
    one, two = np.array(FIRST[0]), np.array(SECOND[0]) + 0.001  # without ties
    apart = stats.permutation_test(
        (one, two), brunner_munzel, alternative="greater", vectorized=True, n_resamples=np.inf
    )
    assert permutation_test([one], [two]) == pytest.approx(apart.pvalue)
    ranked = stats.wilcoxon(one, two, method="exact")
    assert permutation_test([one], [two], paired=True) == pytest.approx(ranked.pvalue)
    assert permutation_test([one], [one - 1], paired=True) == 2 / 2**5
    assert permutation_test([one], [one - 1]) == pytest.approx(2 / math.comb(10, 5))


def test_the_statistic_is_that_of_brunner_and_munzel():
    one, two = np.array([[1.0, 2, 2, 4, 5], [3, 4, 5, 6, 9]])
    (first,) = _separation([one], [two], np.arange(5)[None])
    assert first == pytest.approx(abs(stats.brunnermunzel(one, two).statistic))


def test_pairs_that_are_equal_in_exact_arithmetic_tie():
    one, two = [[0.8, 0.7, 0.5, 0.9]], [[0.7, 0.6, 0.6, 1.0]]  # 0.1, 0.1, −0.1, −0.1
    assert permutation_test(one, two, paired=True) == 1.0


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
    first, second = [[10.0, 10.1, 10.2, 10.3], [0.0, 0.0]], [[9.6, 9.7, 9.8, 9.9], [0.0, 0.0]]
    assert permutation_test(first, second) == pytest.approx(2 / math.comb(8, 4))
    with pytest.raises(DataError, match=r"got \[2, 1\] and \[2, 1\] runs per task"):
        permutation_test([[0.1, 0.2], [0.3]], [[0.3, 0.4], [0.5]])


def test_the_false_positive_rate_is_nominal():
    rng = np.random.default_rng(4)
    chances = [
        permutation_test([rng.normal(size=5).tolist()], [rng.normal(size=5).tolist()])
        for _ in range(400)
    ]
    assert np.mean(np.array(chances) <= 0.1) == pytest.approx(0.1, abs=0.04)


def test_min_p_is_the_step_down_procedure_of_westfall_and_young():
    """The definition, spelled out for pairs: the lowest p-value of those not lower."""
    rng = np.random.default_rng(5)
    base = rng.normal(size=6)
    arms = [base + rng.normal(effect, 0.5, 6) for effect in (2.0, 0.3, 0.0)]
    tests = permutation_tests([Contrast([arm], [base], True) for arm in arms])
    gaps = np.array([arm - base for arm in arms])
    signs = 1 - 2 * np.array([[int(c) for c in f"{k:06b}"] for k in range(2**6)])
    sums = np.abs((np.sign(gaps) * stats.rankdata(np.abs(gaps), axis=1)) @ signs.T)
    p = (sums[:, None, :] >= sums[:, :, None]).mean(2)
    order = np.argsort(p[:, 0])
    largest = 0.0
    for rank, k in enumerate(order):
        lowest = p[order[rank:]].min(0)
        largest = max(largest, np.mean(lowest <= p[k, 0]))
        assert tests.adjusted[k] == pytest.approx(largest)
        assert tests.chances[k] == pytest.approx(p[k, 0])
    assert tests.is_exact
    assert tests.num_permutations == 2**6


@pytest.mark.parametrize("paired", [False, True])
def test_min_p_controls_the_family_wise_error_and_finds_large_effects(paired):
    """Four of six arms equal the baseline; two differ by much. Exponential scores."""
    rng = np.random.default_rng(7)
    errors, found = 0, 0
    for trial in range(150):
        scores = rng.exponential(size=(7, 8)) + np.array([0, 0, 0, 0, 0, 9, 18])[:, None]
        tests = permutation_tests(
            [Contrast([arm.tolist()], [scores[0].tolist()], paired) for arm in scores[1:]],
            num_permutations=600,
            seed=trial,
        )
        errors += min(tests.adjusted[:4]) <= 0.05
        found += sum(p <= 0.05 for p in tests.adjusted[4:])
        assert all(a >= p for a, p in zip(tests.adjusted, tests.chances, strict=True))
    assert errors / 150 <= 0.09  # 0.05, and twice its standard error
    assert found / 300 >= 0.85


def test_eight_seeds_can_distinguish_all_arms_from_a_baseline_but_not_all_pairs_by_holm():
    baseline = [[0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56, 0.57]]
    arms = [[[score + 0.1 * k for score in baseline[0]]] for k in range(1, 9)]
    tests = permutation_tests([Contrast(arm, baseline, True) for arm in arms])
    assert max(tests.adjusted) <= 0.05
    assert min(adjust_for_many([2 / 2**8] * 36)) == pytest.approx(0.281, abs=1e-3)


def test_the_smallest_attainable_p_counts_pairs_of_equal_scores():
    assert smallest_p(5, paired=True) == 2 / 2**5
    assert smallest_p(4) == 2 / math.comb(8, 4)
    assert smallest_p(3, num_tasks=2) == 2 / math.comb(6, 3) ** 2
    (least,) = permutation_tests([Contrast([[0.1, 0.3, 0.5]], [[0.2, 0.5, 0.5]], True)]).least
    assert least == pytest.approx(2 * 2 / 2**3)


def test_contrasts_of_different_shape_are_sampled():
    tests = permutation_tests(
        [Contrast([[1.0, 2.0, 3.0, 5.0]], [[0.0, 0.1, 0.2]]), Contrast([[1.0, 2.0]], [[0.0, 0.1]])],
        num_permutations=500,
    )
    assert (tests.is_exact, tests.num_permutations) == (False, 501)
    assert permutation_tests([]).adjusted == []


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


def test_the_detectable_difference_does_not_depend_on_the_observed_one():
    near = power_of_groups(FIRST, SECOND, paired=True, effect=0.05)
    far = power_of_groups([[s + 0.3 for s in task] for task in FIRST], SECOND, paired=True)
    assert near.detectable == pytest.approx(far.detectable)
    assert near.detectable < power_of_groups(FIRST, SECOND).detectable
    assert far.needed is None  # no effect was stated


def test_the_detectable_difference_follows_its_formula():
    """Eight pairs: 12 / 256 is the largest p-value of a permutation test below 0.05."""
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=8), rng.normal(size=8)
    found = power_of_groups([one], [two], paired=True)
    error = stats.sem(one - two)
    critical = stats.t.ppf(1 - 6 / 256, 7)
    shift = found.detectable / error
    power = stats.nct.sf(critical, 7, shift) + stats.nct.cdf(-critical, 7, shift)
    assert power == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("paired", [False, True])
def test_the_detectable_difference_is_detected_with_the_stated_power(paired):
    rng = np.random.default_rng(6)

    def groups(shift):
        common = rng.normal(size=10) if paired else 0.0
        first, second = common + rng.normal(size=(2, 10))
        return [(first + shift).tolist()], [second.tolist()]

    sizes = [power_of_groups(*groups(0), paired=paired).detectable for _ in range(60)]
    size = math.sqrt(np.mean(np.square(sizes)))
    seen = [
        permutation_test(*groups(size), paired=paired, num_permutations=1024) <= 0.05
        for _ in range(200)
    ]
    assert 0.7 <= np.mean(seen) <= 0.95


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("effect", [0.02, 0.05, 0.5, 5.0])
def test_planned_seeds_detect_the_stated_effect(paired, effect):
    rng = np.random.default_rng(3)
    one, two = rng.normal(0, 0.1, 9), rng.normal(0, 0.1, 9)
    found = power_of_groups([one], [two], paired=paired, effect=effect)
    assert found.needed is not None
    assert smallest_p(found.needed, paired=paired) <= 0.05
    enough = needed_runs(effect / found.spread, paired=paired)
    assert enough <= found.needed <= max(enough + 4, 7)


def test_few_seeds_detect_nothing_however_large():
    for paired, few, enough in ((True, 5, 6), (False, 3, 4)):
        steps = np.linspace(0, 0.1, enough)
        found = power_of_groups([steps[:few] + 9], [steps[:few]], paired=paired)
        assert math.isinf(found.detectable)
        found = power_of_groups([steps[::-1]], [steps], paired=paired)
        assert found.detectable < 1
    same = power_of_groups([[0.5] * 6], [[0.4] * 6], effect=0.1)
    assert (same.spread, same.detectable, same.needed) == (0, 0, 4)
    with pytest.raises(DataError, match="two runs of each"):
        power_of_groups([[0.5]], [[0.4]])


def test_a_sampled_p_value_is_never_zero():
    first, second = [list(range(100, 115))], [list(range(15))]
    assert permutation_test(first, second, num_permutations=99) == 1 / 100


def test_equal_centres_with_unequal_spreads_are_rarely_significant():
    rng = np.random.default_rng(4)
    rejected = [
        permutation_test([rng.normal(size=14)], [5 * rng.normal(size=8)], num_permutations=256)
        <= 0.05
        for _ in range(300)
    ]
    assert np.mean(rejected) <= 0.08


@pytest.mark.parametrize("paired", [False, True])
def test_sampled_permutations_start_with_the_observed_order(paired):
    """The observed difference counts as one of the permutations, so no p-value is 0."""
    shape = _Shape((3, 2), (3, 2), paired)
    first = shape.sample(5, seed=0)
    assert len(first) == 6
    assert first[0].tolist() == shape.enumerate()[0].tolist()
    assert len({tuple(row) for row in first.tolist()}) > 1


def test_stepped_down_p_values_do_not_decrease_with_the_p_value():
    """Westfall and Young (1993): each p-value is at least that of every lower one."""
    chances = np.array([[0.25, 1.0, 0.5, 0.75], [0.5, 0.25, 1.0, 0.75], [0.75, 0.5, 0.25, 1.0]])
    assert _step_down(chances) == [0.75, 0.75, 0.75]
    assert _step_down(chances[:1]) == [0.25]
    assert _step_down(chances[[1, 0]]) == [0.5, 0.5]
    assert _step_down(chances[[2, 1]]) == [0.75, 0.75]
