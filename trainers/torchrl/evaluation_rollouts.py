"""Episodes with a policy that does not explore, for evaluation and tests.

Each episode has a separate seed, so that equal seeds yield equal episodes.
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
    """Results of an episode: the sums of its rewards, and its length in steps.

    ``returns`` are by group of agents, each the mean over the group; without groups, the name is
    empty.
    """

    returns: Mapping[str, float]
    length: int

    @property
    def episode_return(self) -> float:
        """The mean of all groups' returns."""
        return fmean(self.returns.values())


def play_episodes(environment: EnvBase, policy: nn.Module, seeds: Sequence[int]) -> list[Episode]:
    """Run an episode for each seed, without exploration, in an environment without a batch.

    The seeds are used for the environment and the global generators. Environment and policy may
    be on different devices.
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
    """Return the policy, with inputs moved to its device and outputs moved back."""
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
    """Return the group of a reward's key: ``("agents", "reward")`` → ``agents``."""
    return "" if isinstance(key, str) else ".".join(key[:-1])


def _is_done(after: TensorDictBase, environment: EnvBase) -> bool:
    """Return whether the episode is over, for all agents if only they have ends."""
    done = after.get("done", None)
    if done is not None:
        return bool(done.any())
    ends = [after.get(key) for key in environment.done_keys if key[-1] == "done"]
    return all(bool(end.all()) for end in ends)
