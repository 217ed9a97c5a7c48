"""Intervals agree with published values, have nominal coverage, and respect clusters."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.statistics import (
    Estimate,
    accuracy,
    accuracy_by,
    accuracy_difference,
    bootstrap_interval,
    clustered_proportion,
    difference_of_proportions,
    paired_difference,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_match_newcombe_1998(successes, n, low, high):
    estimate = wilson_interval(successes, n)
    assert estimate.value == pytest.approx(successes / n)
    assert (estimate.low, estimate.high) == (
        pytest.approx(low, abs=6e-5),
        pytest.approx(high, abs=6e-5),
    )


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((0, 10), (0, 10), -0.2775, 0.2775),
    ],
)
def test_differences_match_newcombe_1998_method_10(first, second, low, high):
    estimate = difference_of_proportions(first, second)
    assert (estimate.low, estimate.high) == (
        pytest.approx(low, abs=6e-5),
        pytest.approx(high, abs=6e-5),
    )


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_intervals_contain_the_value_and_are_symmetric(counts):
    successes, n = counts
    one, other = wilson_interval(successes, n), wilson_interval(n - successes, n)
    assert 0 <= one.low <= one.value <= one.high <= 1
    assert one.low == pytest.approx(1 - other.high)


def test_no_trials_give_no_information():
    estimate = wilson_interval(0, 0)
    assert math.isnan(estimate.value)
    assert (estimate.low, estimate.high, estimate.n) == (0, 1, 0)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2), (0, -1)])
def test_invalid_counts_are_refused(successes, n):
    with pytest.raises(DataError, match="expected 0 <= successes <= n"):
        wilson_interval(successes, n)


def test_an_invalid_level_is_refused():
    with pytest.raises(DataError, match="between 0 and 1"):
        wilson_interval(1, 2, level=95)


def test_one_trial_per_cluster_equals_wilson_and_repeats_add_no_information():
    correct = [1, 0, 1, 1, 0, 1, 1, 1]
    once = clustered_proportion(correct, range(8))
    assert (once.low, once.high) == (wilson_interval(6, 8).low, wilson_interval(6, 8).high)
    many = clustered_proportion(correct * 10, list(range(8)) * 10)
    assert many.n == 8
    assert many.value == once.value
    assert many.high - many.low == pytest.approx(once.high - once.low, rel=0.1)


def test_independent_repeats_add_information():
    rng = np.random.default_rng(0)
    correct = (rng.random(1000) < 0.7).astype(int).tolist()
    estimate = clustered_proportion(correct, [i // 10 for i in range(1000)])
    assert estimate.high - estimate.low < 0.75 * (
        wilson_interval(70, 100).high - wilson_interval(70, 100).low
    )


def test_clusters_that_agree_count_once_each():
    estimate = clustered_proportion([1] * 30, [i // 3 for i in range(30)])
    assert estimate.low == pytest.approx(wilson_interval(10, 10).low)
    assert estimate.high == 1


def test_the_variance_of_few_clusters_is_corrected():
    # residuals 1, 0, -1 of six trials: variance 2/36, times 3/2 for three clusters; .25 / (1/12)
    estimate = clustered_proportion([1, 1, 0, 1, 0, 0], ["a", "a", "b", "b", "c", "c"])
    wilson = wilson_interval(1.5, 3)
    assert (estimate.low, estimate.high) == pytest.approx((wilson.low, wilson.high))
    assert estimate.n == 3


def test_opposite_repeats_count_at_most_as_independent_trials():
    clusters = [cluster for cluster in range(10) for _ in range(2)]
    estimate = clustered_proportion([1, 0] * 9 + [1, 1], clusters)
    wilson = wilson_interval(11, 20)
    assert (estimate.low, estimate.high) == pytest.approx((wilson.low, wilson.high))


def test_clustered_intervals_have_nominal_coverage():
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(60), 5).tolist()
    covered = 0
    for _ in range(400):
        chance = np.repeat(rng.beta(1.4, 0.6, 60), 5)  # mean 0.7, strongly clustered
        estimate = clustered_proportion((rng.random(300) < chance).astype(int).tolist(), clusters)
        covered += estimate.low <= 0.7 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_bootstrap_agrees_with_the_normal_interval_and_is_seeded(method):
    values = np.random.default_rng(2).normal(3, 2, 400).tolist()
    estimate = bootstrap_interval(values, method=method, seed=5)
    spread = 1.96 * np.std(values, ddof=1) / 20
    assert estimate.low == pytest.approx(np.mean(values) - spread, abs=0.04)
    assert estimate.high == pytest.approx(np.mean(values) + spread, abs=0.04)
    assert estimate == bootstrap_interval(values, method=method, seed=5)
    assert estimate != bootstrap_interval(values, method=method, seed=6)


def test_bootstrap_resamples_complete_clusters():
    values = np.random.default_rng(3).normal(0, 1, 50).tolist()
    once = bootstrap_interval(values)
    many = bootstrap_interval(values * 8, clusters=list(range(50)) * 8)
    assert many.n == 50
    assert many.high - many.low == pytest.approx(once.high - once.low, rel=0.01)


def test_sums_and_sizes_of_clusters_are_resampled_together():
    clusters = [cluster for cluster in range(20) for _ in range(1 + 3 * cluster)]
    values = [0.5 + 0.01 * (cluster % 2) for cluster in clusters]
    estimate = bootstrap_interval(values, clusters=clusters)
    assert 0.5 <= estimate.low <= estimate.high <= 0.51


def test_bootstrap_interval_of_constant_values_is_the_value():
    assert bootstrap_interval([0.5] * 9).low == bootstrap_interval([0.5] * 9).high == 0.5
    assert bootstrap_interval([2.0]).high == 2.0
    assert math.isnan(bootstrap_interval([]).value)


def test_a_share_has_wilsons_interval():
    assert bootstrap_interval([1.0] * 500) == wilson_interval(500, 500)
    assert bootstrap_interval([1.0] * 500).low == pytest.approx(0.992, abs=5e-4)
    ids = [name for name in range(20) for _ in range(5)]
    repeated = bootstrap_interval([name % 2 for name in ids], clusters=ids)
    assert repeated == clustered_proportion([name % 2 for name in ids], ids)
    with pytest.raises(DataError, match="level"):
        bootstrap_interval([0.0, 1.0], level=2)


def test_pairs_that_never_disagree_have_an_interval():
    """Bonett and Price (2012): with a pair of each disagreement added, ±1.96 √(2 / 502) / √502."""
    ids = list(range(500))
    same = paired_difference(([1.0] * 500, ids), ([1.0] * 500, ids))
    assert (same.value, same.low) == (0, -same.high)
    assert same.high == pytest.approx(1.96 * math.sqrt(2) / 502, rel=1e-3)
    never = paired_difference(([1.0] * 9, ids[:9]), ([0.0] * 9, ids[:9]))
    assert (never.value, never.high) == (1, 1)
    assert 0.4 < never.low < 1


@pytest.mark.parametrize(("one", "both"), [(0.02, 0.9), (0.1, 0.6)])
def test_paired_intervals_of_rare_disagreement_cover_the_truth(one, both):
    rng = np.random.default_rng(5)
    ids, chances = list(range(60)), [both, one, one, 1 - both - 2 * one]
    covered = 0
    for _ in range(1000):
        kinds = rng.choice(4, size=60, p=chances)
        first, second = np.isin(kinds, [0, 1]).astype(int), np.isin(kinds, [0, 2]).astype(int)
        estimate = paired_difference((first.tolist(), ids), (second.tolist(), ids))
        covered += estimate.low <= 0 <= estimate.high
    assert covered / 1000 >= 0.93


def test_pairing_by_datapoint_is_narrower_than_independence_and_ignores_order():
    rng = np.random.default_rng(4)
    hard = rng.random(500)
    first, second = (hard < 0.8).astype(int), (hard < 0.75).astype(int)
    order = rng.permutation(500)
    ids = np.arange(500)
    paired = paired_difference(
        (first.tolist(), ids.tolist()), (second[order].tolist(), ids[order].tolist())
    )
    apart = difference_of_proportions((first.sum(), 500), (second.sum(), 500))
    assert paired.value == pytest.approx(apart.value)
    assert paired.high - paired.low < 0.6 * (apart.high - apart.low)
    assert paired.excludes_zero
    assert not apart.excludes_zero


def test_disjoint_datapoints_cannot_be_paired():
    with pytest.raises(DataError, match="none in common"):
        paired_difference(([1], [0]), ([1], [1]))


def _table(correct, ids=None, y=None):
    ids = list(range(len(correct))) if ids is None else ids
    y = [i % 2 for i in ids] if y is None else y
    return {"datapoint_id": ids, "y": y, "decision": y, "correct": correct}


def test_only_tables_on_the_same_datapoints_are_paired():
    first, second = _table([1, 1, 0, 1] * 20), _table([1, 0, 0, 1] * 20)
    assert "paired" in accuracy_difference(first, second).method
    relabelled = _table([1, 0, 0, 1] * 20, y=[1] * 80)
    assert accuracy_difference(first, relabelled).method == "newcombe"
    part = _table([1] * 30)
    assert accuracy_difference(first, part).method == "newcombe", "a small part of the other"
    elsewhere = _table([1, 0, 0, 1] * 20, ids=list(range(1000, 1080)))
    assert accuracy_difference(first, elsewhere).method == "newcombe"
    assert accuracy_difference(first, elsewhere).value == pytest.approx(0.25)


def test_accuracy_by_group_excludes_unknown_groups():
    table = _table([1, 0, 1, 1, 0]) | {"wl_score": [2, 0, None, 2, 0]}
    groups = accuracy_by(table, "wl_score")
    assert list(groups) == [0, 2]
    assert (groups[0].value, groups[2].value, groups[2].n) == (0, 1, 2)
    assert accuracy(table).value == pytest.approx(0.6)
    with pytest.raises(DataError, match="no column 'rounds'"):
        accuracy_by(table, "rounds")


def test_estimates_are_formatted():
    estimate = Estimate(0.8731, 0.8612, 0.8841, 3600)
    assert str(estimate) == "0.873 [0.861, 0.884] (n=3600)"
    assert estimate.percent() == "87.3 % [86.1, 88.4]"
    assert estimate.excludes_zero
    assert not Estimate(0.1, 0.0, 0.2, 9).excludes_zero
    assert Estimate(0.021, -0.003, 0.045, 9).points() == "+2.1 [−0.3, +4.5]"
