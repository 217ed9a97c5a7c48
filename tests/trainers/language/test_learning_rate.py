"""The learning rate of language trainers: warm-up by steps, schedule by iterations."""

import math

import pytest

from ratchet.parameters.language import LanguageOptimizerParameters
from trainers.language.learning_rate import LearningRate


def rates(schedule, num_iterations=4):
    rate = LearningRate(LanguageOptimizerParameters(lr=0.1, schedule=schedule))
    found = []
    for iteration in range(num_iterations):
        rate.set_progress(iteration, num_iterations)
        found.append(rate.after(1000))
    return found


def test_schedules_have_their_closed_forms():
    assert rates("constant") == [0.1] * 4
    assert rates("linear") == pytest.approx([0.1, 0.075, 0.05, 0.025])
    half = 0.1 * math.sqrt(0.5) / 2
    assert rates("cosine") == pytest.approx([0.1, 0.05 + half, 0.05, 0.05 - half])


def test_the_rate_rises_linearly_over_the_warm_up_and_then_follows_the_schedule():
    rate = LearningRate(LanguageOptimizerParameters(lr=0.1, schedule="linear", warmup_steps=4))
    assert [rate.after(steps) for steps in range(6)] == pytest.approx(
        [0.02, 0.04, 0.06, 0.08, 0.1, 0.1]
    )
    rate.set_progress(1, 2)
    assert rate.after(1) == pytest.approx(0.02)
