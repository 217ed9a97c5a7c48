"""Statistics agree with rliable (aggregates, bands) and statsmodels (power, Holm, medians).

The reference was computed by ``rliable_reference.py`` with rliable 1.2.0 and statsmodels 0.15.0.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ratchet.statistics import (
    RunCurve,
    adjust_for_many,
    interquartile_mean,
    learning_curve,
    mean,
    median_position,
    needed_runs,
    optimality_gap,
    performance_profile,
    power_of_t_test,
    probability_of_improvement,
    stratified_interval,
)

REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text())
DRAWN = 4e-3  # difference of two bootstraps with this number of resamples
AGGREGATES = {"iqm": interquartile_mean, "mean": mean, "optimality_gap": optimality_gap}


def strata(name):
    """Return the scores of each task's runs."""
    return np.array(REFERENCE["scores"][name]).T.tolist()


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_aggregates_and_intervals(name, aggregate):
    value, low, high = REFERENCE["aggregates"][name][aggregate]
    found = stratified_interval(
        strata(name), AGGREGATES[aggregate], method="percentile", num_resamples=30_000
    )
    assert found.value == pytest.approx(value, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((low, high), abs=DRAWN)


def test_probability_of_improvement():
    value, low, high = REFERENCE["probability_of_improvement"]
    found = probability_of_improvement(strata("first"), strata("second"), method="percentile")
    assert found.value == pytest.approx(value, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((low, high), abs=2 * DRAWN)


@pytest.mark.parametrize("name", ["first", "second"])
def test_performance_profiles_with_their_bands(name):
    values, lows, highs = REFERENCE["profiles"][name]
    found = performance_profile(
        strata(name), REFERENCE["thresholds"], method="percentile", num_resamples=20_000
    )
    assert found.values == pytest.approx(values, abs=1e-6)
    one_run = 1 / found.n + 1e-9  # quantiles of shares change in steps of one run
    assert found.lows == pytest.approx(lows, abs=one_run)
    assert found.highs == pytest.approx(highs, abs=one_run)


def test_learning_curves_with_their_bands():
    curves = np.array(REFERENCE["curves"])  # runs × tasks × steps
    steps = np.arange(curves.shape[2], dtype=float)
    tasks = [[RunCurve(steps, run) for run in runs] for runs in curves.transpose(1, 0, 2)]
    found = learning_curve(
        tasks, steps, interquartile_mean, method="percentile", num_resamples=20_000
    )
    values, lows, highs = REFERENCE["iqm_of_curves"]
    assert found.values == pytest.approx(values, abs=1e-6)
    assert found.lows == pytest.approx(lows, abs=DRAWN)
    assert found.highs == pytest.approx(highs, abs=DRAWN)


def test_the_median_of_censored_runs():
    found = median_position(REFERENCE["times"], list(map(bool, REFERENCE["reached"])))
    assert [found.value, found.low, found.high] == pytest.approx(REFERENCE["median"])


def test_holms_correction():
    assert adjust_for_many(REFERENCE["chances"]) == pytest.approx(REFERENCE["holm"])


@pytest.mark.parametrize("kind", ["unpaired", "paired"])
def test_power_and_needed_runs(kind):
    paired = kind == "paired"
    for effect, num_runs, power in REFERENCE[f"power_{kind}"]:
        assert power_of_t_test(effect, num_runs, paired=paired) == pytest.approx(power, abs=1e-5)
    for effect, num_runs in REFERENCE[f"needed_{kind}"]:
        assert needed_runs(effect, paired=paired) == math.ceil(num_runs)


def test_needed_runs_match_cohens_table():
    """Cohen (1988), table 2.4.1: power 0.8 at a two-sided 5 %."""
    assert [needed_runs(effect) for effect in (0.2, 0.5, 0.8)] == [394, 64, 26]  # 393 rounded there
