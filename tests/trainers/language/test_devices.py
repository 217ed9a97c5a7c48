"""Language trainers on a device that refuses to meet the CPU, where batches are prepared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.emulated_device import play_in_a_process

SCRIPT = Path(__file__).with_name("play_on_emulated_device.py")


def play(*names: str) -> None:
    assert play_in_a_process(SCRIPT, *names) == [f"played {name}" for name in names]


@pytest.mark.slow
def test_trainers_learn_on_the_device():
    play("grpo", "language_ppo", "language_dpo", "cross_entropy", "on_policy_distillation")


@pytest.mark.slow
def test_kl_penalties_in_the_reward_do():
    play("grpo.reward", "language_ppo.reward")
