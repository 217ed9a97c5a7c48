"""Play episodes with a policy that does not explore: for evaluation and tests.

Each episode begins with a seed of its own, so that the same seeds give the same episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from ratchet.seeding import seeded_globals

if TYPE_CHECKING:
    from torch import nn
    from torchrl.envs import EnvBase

MAX_STEPS = 100_000


@dataclass(frozen=True)
class Episode:
    """How an episode went: the sum of its rewards, and its steps."""

    episode_return: float
    length: int


def play_episodes(environment: EnvBase, policy: nn.Module, seeds: Sequence[int]) -> list[Episode]:
    """Play an episode for each seed, without exploring, in an environment of one at a time.

    Seeds are those of environment and global generators.
    """
    training = policy.training
    policy.eval()
    environment.eval()
    try:
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            return [_play(environment, policy, seed) for seed in seeds]
    finally:
        policy.train(training)


def _play(environment: EnvBase, policy: nn.Module, seed: int) -> Episode:
    with seeded_globals(seed):
        environment.set_seed(seed % 2**31)
        step = environment.reset()
        total, length = 0.0, 0
        while length < MAX_STEPS:
            step = environment.step(policy(step))
            reward = step.get(("next", "reward"))
            total += float(reward.sum())
            length += 1
            if _is_done(step):
                break
            step = step.get("next").exclude("reward")
    return Episode(total, length)


def _is_done(step: TensorDictBase) -> bool:
    return bool(step.get(("next", "done")).any())
