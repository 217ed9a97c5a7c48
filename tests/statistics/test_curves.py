"""Profiles and learning curves do not depend on order, and bands cover the truth."""

import itertools
import math
import random as stdlib_random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.statistics import (
    RunCurve,
    interquartile_mean,
    learning_curve,
    mean,
    mean_height,
    median_position,
    performance_profile,
)
from ratchet.statistics.curves import common_positions, first_reached, values_at

few_scores = st.lists(st.floats(0, 1), min_size=2, max_size=6)
tasks = st.lists(few_scores, min_size=1, max_size=3)
THRESHOLDS = np.linspace(-0.1, 1.1, 13).tolist()


@settings(deadline=None, max_examples=50)
@given(tasks, st.sampled_from(["percentile", "expanded"]), st.randoms())
@example([[0.0] * 2, [0.0] * 3, [0.0] * 2], "expanded", stdlib_random.Random(1))
def test_profiles_and_bands_decrease_and_are_independent_of_order(runs, method, random):
    found = performance_profile(runs, THRESHOLDS, method=method, num_resamples=50)
    for curve in (found.values, found.lows, found.highs):
        assert all(one >= two for one, two in itertools.pairwise(curve))
    assert all(0 <= low <= high <= 1 for low, high in zip(found.lows, found.highs, strict=True))
    if method == "expanded":
        ends = zip(found.lows, found.values, found.highs, strict=True)
        assert all(low <= value <= high for low, value, high in ends)
    for task in runs:
        random.shuffle(task)
    assert performance_profile(runs, THRESHOLDS, num_resamples=5).values == found.values


def test_agreement_of_few_runs_is_weak_evidence():
    runs = [[0.5, 0.6, 0.7, 0.8, 0.9]]
    plain = performance_profile(runs, [0.0, 1.0], method="percentile")
    assert (plain.lows, plain.highs) == ([1, 0], [1, 0])
    honest = performance_profile(runs, [0.0, 1.0])
    # with this share, five of five happen by chance in 2.5 % of cases
    assert honest.lows[0] ** 5 == pytest.approx(0.025)
    assert honest.highs == pytest.approx([1, 1 - honest.lows[0]])
    at_it = performance_profile([[0.5, 0.5]], [0.5], method="percentile")
    assert (at_it.values, at_it.lows, at_it.highs) == ([0], [0], [0])  # equal is not better
    alone = performance_profile([[0.5]], [0.0, 1.0])
    assert alone.values == [1, 0]
    assert math.isnan(alone.lows[0])


@pytest.mark.parametrize(("num_runs", "num_tasks"), [(5, 1), (10, 1), (5, 4)])
def test_profiles_cover_the_truth(num_runs, num_tasks):
    """Uniform runs: the share above τ is 1 − τ."""
    rng = np.random.default_rng(3)
    thresholds, covered = np.array([0.2, 0.5, 0.9]), np.zeros(3)
    for trial in range(400):
        runs = rng.random((num_tasks, num_runs)).tolist()
        found = performance_profile(runs, thresholds.tolist(), num_resamples=400, seed=trial)
        covered += (np.array(found.lows) <= 1 - thresholds) & (1 - thresholds <= found.highs)
    assert (covered / 400 > 0.91).all(), covered


def line(length, slope=1.0, every=1):
    steps = np.arange(0, length, every, dtype=float)
    return RunCurve(steps, slope * steps)


def test_a_curve_is_sorted_without_gaps_and_with_one_value_per_position():
    curve = RunCurve.from_points([(3, 1.0), (1, 5.0), (2, math.nan), (3, 2.0)])
    assert curve.positions.tolist() == [1, 3]
    assert curve.values.tolist() == [5, 1.5]
    with pytest.raises(DataError, match="no finite value"):
        RunCurve.from_points([(0, math.nan)])


def test_few_positions_are_kept_and_many_become_means_of_their_interval():
    few = [line(6), line(4)]
    assert common_positions(few).tolist() == [0, 1, 2, 3, 4, 5]
    many = line(1000)
    positions = common_positions([many])
    assert len(positions) == 40
    assert positions[0] == 24
    assert positions[-1] == 999
    assert values_at(many, positions)[:2] == pytest.approx([12, 37])


def test_values_are_interpolated_but_not_extrapolated():
    curve = RunCurve.from_points([(2, 4.0), (6, 8.0)])
    found = values_at(curve, np.array([1.0, 2.0, 3.0, 6.0, 7.0]))
    assert found[1:4].tolist() == [4, 5, 8]
    assert np.isnan(found[[0, 4]]).all()


def test_the_curve_of_runs_of_different_lengths_ends_with_the_shortest():
    """Averaging the rest would make the curve jump to the longer runs."""
    runs = [[line(10, 1.0), line(10, 1.0), line(5, 100.0)]]
    band = learning_curve(runs, common_positions(runs[0]), mean)
    assert list(band.positions) == [0, 1, 2, 3, 4]
    assert band.values[-1] == pytest.approx(4 * 34)
    assert band.n == 3
    apart = [[line(3)], [RunCurve.from_points([(7, 1.0)])]]
    assert len(learning_curve(apart, common_positions([*apart[0], *apart[1]]), mean)) == 0


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.floats(-1, 1), min_size=4, max_size=4), min_size=2, max_size=6),
    st.randoms(),
)
def test_a_learning_curve_is_independent_of_order_and_its_band_is_within_its_runs(values, random):
    steps = np.arange(4.0)
    runs = [RunCurve(steps, np.array(each)) for each in values]
    band = learning_curve([runs], steps, interquartile_mean, num_resamples=40)
    assert all(low <= high for low, high in zip(band.lows, band.highs, strict=True))
    lowest, highest = np.min(values, axis=0), np.max(values, axis=0)
    assert (np.array(band.lows) >= lowest - 1e-12).all()
    assert (np.array(band.highs) <= highest + 1e-12).all()
    random.shuffle(runs)
    again = learning_curve([runs], steps, interquartile_mean, num_resamples=2)
    assert again.values == pytest.approx(band.values)


def test_resampling_long_curves_in_parts_gives_the_same_result(monkeypatch):
    rng = np.random.default_rng(5)
    steps = np.arange(30.0)
    runs = [[RunCurve(steps, rng.normal(size=30)) for _ in range(4)] for _ in range(2)]
    whole = learning_curve(runs, steps, interquartile_mean)
    monkeypatch.setattr("ratchet.statistics.curves._MAX_ELEMENTS", 50_000)
    assert learning_curve(runs, steps, interquartile_mean) == whole


def test_bands_of_learning_curves_cover_the_truth():
    """Runs are lines with individual slopes: normal around the true line at each step."""
    rng = np.random.default_rng(6)
    steps, covered = np.arange(5.0), np.zeros(5)
    for trial in range(300):
        slopes = rng.normal(1.0, 0.3, size=5)
        runs = [RunCurve(steps, rng.normal(size=5) + each * steps) for each in slopes]
        band = learning_curve([runs], steps, interquartile_mean, num_resamples=300, seed=trial)
        covered += (np.array(band.lows) <= steps) & (steps <= band.highs)
    assert (covered / 300 > 0.89).all(), covered


def test_the_mean_height_is_the_area_over_the_distance():
    curve = RunCurve.from_points([(0, 0.0), (4, 4.0), (6, 4.0)])
    assert mean_height(curve, 0, 6) == pytest.approx((8 + 8) / 6)
    assert mean_height(curve, 1, 5) == pytest.approx((7.5 + 4) / 4)
    with pytest.raises(DataError, match="from 0 to 6"):
        mean_height(curve, 0, 7)


def test_a_run_that_ends_below_a_threshold_is_censored_at_its_end():
    assert first_reached(line(10), 6.5) == (7, True)
    assert first_reached(line(5), 6.5) == (4, False)
    lucky = RunCurve(np.arange(100.0), np.array([0.0] * 50 + [1.0] + [0.0] * 49))
    assert first_reached(lucky, 0.5) == (50, True)
    assert first_reached(lucky, 0.5, common_positions([lucky])) == (99, False)


def test_the_median_includes_censored_runs():
    everyone = median_position([1, 2, 3, 4, 5], [True] * 5)
    assert (everyone.value, everyone.low, everyone.high) == (3, 1, math.inf)
    together = median_position([7] * 6, [True] * 6)
    assert (together.value, together.low, together.high) == (7, 7, 7)
    assert median_position([7] * 5, [True] * 5).high == math.inf  # 1 of 32 for half of all
    # without censored runs the median would be 2, with their ends as times 4
    some = median_position([1, 2, 4, 4, 5], [True, True, False, False, True])
    assert some.value == 5
    few = median_position([1, 9, 9, 9], [True, False, False, False])
    assert few.value == math.inf
    nobody = median_position([9] * 6, [False] * 6)
    assert (nobody.value, nobody.low) == (math.inf, 9)
    with pytest.raises(DataError, match="finite"):
        median_position([math.inf], [True])


@pytest.mark.parametrize("num_runs", [1, 2, 3, 4, 5, 20])
def test_medians_of_censored_runs_cover_the_truth(num_runs):
    rng = np.random.default_rng(9)
    covered = 0
    for _ in range(300):
        times, ends = rng.exponential(1, num_runs), rng.uniform(0.5, 3, num_runs)
        found = median_position(np.minimum(times, ends), times <= ends)
        covered += found.low <= math.log(2) < found.high
    assert covered / 300 > 0.91
