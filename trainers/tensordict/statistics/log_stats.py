"""Logged statistics of rollouts and losses: one number per name, ``agent.metric`` for agents.

Works on rollouts ``[E, T]`` with A agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.algorithms.critic_losses import explained_variance
from ratchet.algorithms.masks import masked_mean
from ratchet.scenarios.tensor_environment import COUNTED_DECISION
from trainers.tensordict.objectives.value_estimators import acting_mask
from trainers.tensordict.statistics.episodes import (
    PolicyMeasures,
    decision_statistics,
    episode_statistics,
)


class Episodes(NamedTuple):
    """The episodes that ended in rollouts, in order of environment and step."""

    environment: Tensor
    """int64 ``[K]``: the environment's index."""
    start: Tensor
    """int64 ``[K]``: its first step."""
    stop: Tensor
    """int64 ``[K]``: its last step."""

    @property
    def length(self) -> Tensor:
        """int64 ``[K]``: the number of steps."""
        return self.stop - self.start + 1


def finished_episodes(rollouts: TensorDictBase) -> Episodes:
    """Find the episodes that ended in rollouts ``[E, T]``, truncated to them."""
    ends = rollouts.get(("next", "done")) | rollouts.get(("next", "terminated"))
    environment, stop = ends.nonzero(as_tuple=True)
    before = torch.roll(stop, 1) + 1
    first = torch.ones_like(environment, dtype=torch.bool)
    first[1:] = environment[1:] != environment[:-1]
    return Episodes(environment, torch.where(first, 0, before), stop)


def sum_over_episodes(values: Tensor, episodes: Episodes) -> Tensor:
    """Sum ``[E, T, A]`` over each finished episode: ``[K, A]``."""
    running = values.cumsum(1)
    total = running[episodes.environment, episodes.stop]
    before = running[episodes.environment, (episodes.start - 1).clamp(min=0)]
    return total - torch.where(episodes.start.unsqueeze(-1) > 0, before, 0.0)


def lengths_and_rewards(rollouts: TensorDictBase, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Return length int64 ``[K]`` and summed rewards ``[K, A]`` of finished episodes.

    Counters of episodes that started before the batch include their earlier steps.
    """
    summed = rollouts.get(("next", "agents", "episode_reward"), None)
    if summed is None:
        reward = rollouts.get(("next", "agents", "reward"))
        return episodes.length, sum_over_episodes(reward, episodes)
    at = (episodes.environment, episodes.stop)
    return rollouts.get("round")[at] + 1, summed[at]


def final_decisions(rollouts: TensorDictBase, episodes: Episodes) -> Tensor:
    """Return each agent's last decision of 0 or 1 in finished episodes, 2 for none: ``[K, A]``.

    A forced decision replaces the agent's.
    """
    agent_decision = rollouts.get(("agents", "decision"))
    decision = rollouts.get(("next", *COUNTED_DECISION), agent_decision)
    steps = torch.arange(decision.shape[1], device=decision.device).view(1, -1, 1)
    decision_step = torch.where((decision < 2) & acting_mask(rollouts), steps, -1)
    latest = decision_step.cummax(1).values[episodes.environment, episodes.stop]  # [K, A]
    agents = torch.arange(decision.shape[-1], device=decision.device).unsqueeze(0)
    final = decision[episodes.environment.unsqueeze(-1), latest.clamp(min=0), agents]
    return torch.where(latest >= episodes.start.unsqueeze(-1), final, 2)


def rollout_stats(
    rollouts: TensorDictBase, agent_names: Sequence[str], verifier_names: Sequence[str]
) -> dict[str, float]:
    """Measure rollouts ``[E, T]``, including advantages if an estimator has added them.

    Only finished episodes count; metrics without data are omitted.
    """
    episodes = finished_episodes(rollouts)
    reward = rollouts.get(("next", "agents", "reward"))
    stats: dict[str, float] = {"num_episodes": float(len(episodes.stop))}
    per_agent: dict[str, Tensor] = {"mean_step_reward": reward.mean((0, 1))}
    if len(episodes.stop):
        length, summed = lengths_and_rewards(rollouts, episodes)
        of_episodes, rewards = episode_statistics(length, summed)
        per_agent |= rewards
        stats |= of_episodes
        stats |= _decision_stats(rollouts, episodes, agent_names, verifier_names)
    measures = PolicyMeasures()
    measures.add(rollouts, acting_mask(rollouts))
    per_agent |= _learning_stats(rollouts) | measures.summary()
    return stats | by_agent(per_agent, agent_names)


def _decision_stats(
    rollouts: TensorDictBase,
    episodes: Episodes,
    agent_names: Sequence[str],
    verifier_names: Sequence[str],
) -> dict[str, float]:
    """Measure each verifier's decisions."""
    if not verifier_names:
        return {}
    decision = final_decisions(rollouts, episodes)
    at = (episodes.environment, episodes.stop)
    y, datapoint_ids = rollouts.get("y")[at], rollouts.get("datapoint_id")[at]
    stats: dict[str, float] = {}
    for name in verifier_names:
        mine = decision[:, list(agent_names).index(name)]
        statistics = decision_statistics(mine, y, datapoint_ids)
        stats |= {f"{name}.{what}": value for what, value in statistics.items()}
    return stats


def _learning_stats(rollouts: TensorDictBase) -> dict[str, Tensor]:
    """Measure advantages and values over learning frames, ``[A]`` each."""
    agents = rollouts.get("agents")
    if "learns" not in agents.keys():  # noqa: SIM118 -- a tensordict is no mapping
        return {}
    mask = agents.get("learns").flatten(0, 1)
    target = agents.get("value_target", None)  # missing without a critic
    names = ("advantage",) if target is None else ("advantage", "value", "value_target")
    flat = {name: agents.get(name).flatten(0, 1) for name in names}
    stats = {f"mean_{name}": masked_mean(values, mask, 0) for name, values in flat.items()}
    if target is None:
        return stats
    stats["explained_variance"] = explained_variance(flat["value"], flat["value_target"], mask)
    return stats


def loss_stats(losses: TensorDictBase | None, agent_names: Sequence[str]) -> dict[str, float]:
    """Name mean losses and metrics: scalars unchanged, ``[A]`` by agent, others by their mean.

    Adds ``loss_critic_unscaled``, the sum of the agents' ``critic_loss``, by which runs with
    different coefficients can be compared.
    """
    if losses is None:
        return {}
    named = {str(name): value for name, value in losses.items()}
    per_agent = {n: value for n, value in named.items() if value.shape == (len(agent_names),)}
    others = {n: value.double().mean() for n, value in named.items() if n not in per_agent}
    if "loss_critic" in others and "critic_loss" in per_agent:
        others["loss_critic_unscaled"] = per_agent["critic_loss"].sum()
    return _numbers(others) | by_agent(per_agent, agent_names)


def by_agent(values: Mapping[str, Tensor], agent_names: Sequence[str]) -> dict[str, float]:
    """Turn ``[A]`` tensors into numbers named ``agent.metric``."""
    return _numbers(
        {
            f"{agent}.{name}": number
            for name, tensor in values.items()
            for agent, number in zip(agent_names, tensor.unbind(), strict=True)
        }
    )


def _numbers(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Read ``[]`` tensors with a single synchronisation of the device."""
    if not scalars:
        return {}
    read = torch.stack([number.double() for number in scalars.values()]).tolist()
    return dict(zip(scalars, read, strict=True))
