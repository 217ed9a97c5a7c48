"""Play episodes with a policy that does not explore: for evaluation and tests.

Each episode begins with a seed of its own, so that the same seeds give the same episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
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
    """How an episode went: the sums of its rewards, and its steps.

    ``returns`` are by group of agents, each the mean over those of the group; by the empty name
    where there are no groups.
    """

    returns: Mapping[str, float]
    length: int

    @property
    def episode_return(self) -> float:
        """The mean of all groups' returns."""
        return fmean(self.returns.values())


def play_episodes(environment: EnvBase, policy: nn.Module, seeds: Sequence[int]) -> list[Episode]:
    """Play an episode for each seed, without exploring, in an environment of one at a time.

    Seeds are those of environment and global generators. The environment may lie on another
    device than the policy.
    """
    act = _policy_for(environment, policy)
    training = policy.training
    policy.eval()
    environment.eval()
    try:
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            return [_play(environment, act, seed) for seed in seeds]
    finally:
        policy.train(training)


def _policy_for(
    environment: EnvBase, policy: nn.Module
) -> Callable[[TensorDictBase], TensorDictBase]:
    """Return the policy, with what it sees brought to its device and what it does brought back."""
    parameter = next(policy.parameters(), None)
    there = None if parameter is None else parameter.device
    here = environment.device or torch.device("cpu")
    if there is None or there == here:
        return policy
    return lambda step: policy(step.to(there)).to(here)


def _play(
    environment: EnvBase, act: Callable[[TensorDictBase], TensorDictBase], seed: int
) -> Episode:
    with seeded_globals(seed):
        environment.set_seed(seed % 2**31)
        step = environment.reset()
        returns = {_group(key): 0.0 for key in environment.reward_keys}
        length = 0
        while length < MAX_STEPS:
            step = environment.step(act(step))
            after = step.get("next")
            for key in environment.reward_keys:
                returns[_group(key)] += float(after.get(key).mean())
            length += 1
            if _is_done(after, environment):
                break
            step = after.exclude(*environment.reward_keys)
    return Episode(returns, length)


def _group(key: str | tuple[str, ...]) -> str:
    """Return whose reward lies under a key: ``("agents", "reward")`` is that of ``agents``."""
    return "" if isinstance(key, str) else ".".join(key[:-1])


def _is_done(after: TensorDictBase, environment: EnvBase) -> bool:
    """Return whether the episode is over: for all agents, where only they have an end."""
    done = after.get("done", None)
    if done is not None:
        return bool(done.any())
    ends = [after.get(key) for key in environment.done_keys if key[-1] == "done"]
    return all(bool(end.all()) for end in ends)
