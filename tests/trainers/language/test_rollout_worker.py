"""In a plain loop, too, a process may play while the trainer learns: to the same bits."""

from __future__ import annotations

import os
import signal

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios.registry import build_scenario_instance
from trainers.registry import trainer_class

pytestmark = pytest.mark.slow
GIVEN = HyperParameters(
    scenario="language_task",
    dataset="reverse",
    trainer="grpo",
    rl={"num_iterations": 4},
    language_task={"num_train": 64, "num_test": 8, "reverse": {"length": 3, "num_symbols": 6}},
    agents={
        "_default": {
            "max_tokens": 5,
            "small_model": {"layers": 1, "d_model": 16, "heads": 2, "context_length": 32},
            "warm_up": {"num_steps": 10, "batch_size": 8},
        }
    },
    language={"mode": "one_step_behind", "tasks_per_step": 3, "group_size": 4},
    grpo={"variant": "dapo", "max_resamples": 2, "kl": {"coef": 0.01}},
)


def build(plays_beside_after):
    settings = ExperimentSettings(progress="none")
    found = trainer_class(GIVEN)
    instance = build_scenario_instance(GIVEN, settings, trainer_type=found.trainer_type)
    trainer = found(GIVEN, instance, settings)
    trainer.plays_beside_after = plays_beside_after
    trainer.initial_state()
    return trainer


def test_a_loop_with_a_process_beside_learns_the_same():
    alone, together = build(None), build(0.0)
    plays = together.play_rollouts
    together.play_rollouts = None  # after the first iteration's, which cannot be prefetched
    together.give_rollouts(0, plays(0))
    whole = alone.run_iterations(0, 4)
    parts = together.run_iterations(0, 2)
    assert alone._beside is None
    pid = together._beside.pid
    os.kill(pid, signal.SIGKILL)
    parts += together.run_iterations(2, 4)
    assert together._beside.pid != pid
    assert parts == whole
    assert together.state == alone.state
    together.close()
