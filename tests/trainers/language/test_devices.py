"""Language trainers on a device that refuses to meet the CPU, where batches are prepared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("play_on_emulated_device.py")


def play(*names: str) -> None:
    """Run in a separate process, since a device is registered for all of one."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)]),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *names],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == [f"played {name}" for name in names]


@pytest.mark.slow
def test_trainers_learn_on_the_device():
    play("grpo", "language_ppo", "language_dpo", "cross_entropy", "on_policy_distillation")


@pytest.mark.slow
def test_kl_penalties_in_the_reward_do():
    play("grpo.reward", "language_ppo.reward")
