"""Formulas of expert iteration against manually computed values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.algorithms.selection import (
    guess_replacement_proportion,
    selection_weights,
    set_aside,
    threshold,
    weighted_sampling,
)
from ratchet.errors import ParameterError
from ratchet.parameters import HyperParameters

REWARDS = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=30).map(np.array)


def test_rewards_at_the_threshold_are_selected():
    rewards = np.array([0.9, 0.89, 1.0, -1.0, 0.9], np.float32)
    assert threshold(rewards, 0.9).tolist() == [0, 2, 4]


def test_a_float32_reward_summed_in_float64_still_reaches_its_own_threshold():
    """0.9 as float32 is below 0.9 as float64."""
    rewards = np.array([[0.9]], np.float32).sum(axis=1, dtype=np.float64)
    assert rewards[0] < 0.9
    assert threshold(rewards, 0.9).tolist() == [0]


def test_weights_golden_values():
    """R = -1, 0, 1, 1; m = -1: 0, 1, 2, 2 → 0, .2, .4, .4; + .1/4 each, over 1.1."""
    weights = selection_weights(np.array([-1.0, 0.0, 1.0, 1.0]), minimum=None, epsilon=0.1)
    np.testing.assert_allclose(weights, np.array([0.025, 0.225, 0.425, 0.425]) / 1.1, rtol=1e-14)


def test_weights_with_a_minimum_golden_values():
    """m = 0: rewards below it count as it: 0, 0, 1, 3 → 0, 0, .25, .75; + .01/4, over 1.01."""
    weights = selection_weights(np.array([-1.0, 0.0, 1.0, 3.0]), minimum=0.0, epsilon=0.01)
    np.testing.assert_allclose(
        weights, np.array([0.0025, 0.0025, 0.2525, 0.7525]) / 1.01, rtol=1e-14
    )


@pytest.mark.parametrize("minimum", [None, 2.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01])
def test_equal_weights_are_uniform(minimum, epsilon):
    weights = selection_weights(np.full(5, 2.0), minimum=minimum, epsilon=epsilon)
    np.testing.assert_allclose(weights, 0.2)


@given(REWARDS, st.one_of(st.none(), st.floats(-5, 5)), st.floats(0, 1))
def test_weights_are_a_distribution_that_rises_with_the_reward(rewards, minimum, epsilon):
    weights = selection_weights(rewards, minimum=minimum, epsilon=epsilon)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(weights[order]) >= -1e-12).all()


@given(REWARDS, st.floats(0.1, 1.5), st.integers(0, 1000))
def test_sampling_returns_the_requested_number_and_is_reproducible(rewards, factor, seed):
    draws = [
        weighted_sampling(rewards, np.random.default_rng(seed), size_factor=factor)
        for _ in range(2)
    ]
    assert len(draws[0]) == round(factor * len(rewards))
    np.testing.assert_array_equal(*draws)


def test_sampling_frequencies_match_the_weights():
    rewards = np.array([0.0, 1.0, 3.0])
    generator = np.random.default_rng(0)
    drawn = weighted_sampling(rewards, generator, size_factor=20000, epsilon=0.3)
    expected = selection_weights(rewards, minimum=None, epsilon=0.3)
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), expected, atol=0.01)


def test_sampling_without_replacement_has_no_duplicates_and_no_zero_weights():
    rewards = np.array([0.0, 0.0, 0.0, 1.0, 2.0])
    drawn = weighted_sampling(
        rewards, np.random.default_rng(0), size_factor=1.0, epsilon=0.0, replace=False
    )
    assert sorted(drawn.tolist()) == [3, 4]


def test_sampling_from_an_empty_set():
    assert len(weighted_sampling(np.zeros(0), np.random.default_rng(0))) == 0


@pytest.mark.parametrize(
    ("annealing", "expected"),
    [
        ("none", [0.25, 0.25, 0.25, 0.25]),
        ("linear", [0.25, 0.15, 0.05, 0.0]),
        ("exponential", [0.25, 0.225, 0.2025, 0.18225]),
    ],
)
def test_annealing_golden_values(annealing, expected):
    found = [guess_replacement_proportion(0.25, annealing, 0.1, i) for i in range(4)]
    assert found == pytest.approx(expected, abs=1e-12)


def test_an_unknown_annealing_is_refused():
    with pytest.raises(ParameterError, match="'cosine', expected 'none', 'linear'"):
        guess_replacement_proportion(0.25, "cosine", 0.1, 0)


@given(st.integers(0, 40), st.floats(0, 1), st.integers(0, 100))
def test_held_out_and_remaining_rows_are_a_partition(count, proportion, seed):
    aside, rest = set_aside(count, proportion, np.random.default_rng(seed))
    assert len(aside) == round(proportion * count)
    assert sorted([*aside, *rest]) == list(range(count))
    assert aside.tolist() == sorted(aside)


def test_sampling_too_many_without_replacement_is_refused():
    ei = {"weighting_use_replacement": False, "weighting_sample_size_factor": 1.5}
    with pytest.raises(ParameterError, match=r"pure_text_ei.*without replacement, got 1\.5"):
        HyperParameters(
            scenario="code_validation", trainer="pure_text_ei", dataset="generated", pure_text_ei=ei
        )
