"""Optimizers whose configurations hold lists are kept from stage to stage like any other."""

from __future__ import annotations

import pytest

STEPPING = ["adamax", "nadam", "radam", "rprop"]
NAMES = [STEPPING[0], *(pytest.param(name, marks=pytest.mark.slow) for name in STEPPING[1:])]


@pytest.mark.slow
@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_learns_and_resumes(small, name):
    whole, cut, resumed = (small.make("ppo", optimizer=name) for _ in range(3))
    first = whole.initial_state()
    metrics = whole.run_iterations(0, 2)
    assert whole.state != first
    cut.initial_state()
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    assert resumed.state == whole.state


@pytest.mark.slow
def test_the_one_for_sparse_gradients_is_kept_too(small):
    trainer = small.make("ppo", optimizer="sparse_adam")
    assert trainer.initial_state() == trainer.state
