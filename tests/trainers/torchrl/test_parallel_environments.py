"""Environments in worker processes yield a serial environment's frames, also after a resume."""

from __future__ import annotations

import time

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import (
    Compose,
    EnvBase,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

from trainers.torchrl.snapshots import load_environment, take_environment

SECONDS_OF_A_STEP = 0.02
"""Long enough that a parent which does not wait reads the previous frame."""


class SlowWalk(EnvBase):
    """A random walk from a random start, with slow steps."""

    def __init__(self):
        super().__init__(batch_size=[])
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))
        self.reward_spec = Unbounded((1,))
        self.random = torch.Generator()

    def _set_seed(self, seed):
        self.random.manual_seed(seed)

    def _reset(self, tensordict=None, **_):
        return self._frame(10 * torch.rand(1, generator=self.random))

    def _step(self, tensordict):
        time.sleep(SECONDS_OF_A_STEP)
        moved = tensordict["observation"] + tensordict["action"]
        return self._frame(moved).update({"reward": moved.clone()})

    def _frame(self, observation):
        ended = torch.zeros(1, dtype=torch.bool)
        return TensorDict({"observation": observation, "done": ended, "terminated": ended.clone()})


def slow_walk():
    return TransformedEnv(SlowWalk(), Compose(StepCounter(7), RewardSum()))


def frames(kind, workers, **options):
    """Collect frames after a state is taken and loaded, as in a resumed run."""
    environment = kind(workers, slow_walk, **options)
    torch.manual_seed(0)
    collector = Collector(environment, None, frames_per_batch=30 * workers, total_frames=-1)
    try:
        load_environment(environment, take_environment(environment))
        collector.set_seed(5)
        collector.reset()
        torch.manual_seed(0)
        return next(iter(collector)).clone().exclude("collector")
    finally:
        collector.shutdown()


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        pytest.param(1, {}, id="buffers"),
        pytest.param(3, {"use_buffers": False}, id="pipes", marks=pytest.mark.slow),
    ],
)
def test_frames_of_workers_after_a_load_are_those_of_a_serial_environment(workers, options):
    parallel, serial = frames(ParallelEnv, workers, **options), frames(SerialEnv, workers)
    assert (parallel == serial).all()
    assert parallel["next", "done"].sum() == 4 * workers  # 30 steps, 7 in each episode
