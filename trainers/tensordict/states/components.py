"""Components of a reinforcement-learning trainer, and their conversion from and to states.

Also pools of earlier versions of agents, from which each iteration samples weights. A pool is a
part of the state, ``AGENT@ITERATION`` → name → tensor, so that a stage needs no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainers.pools import member_name, sampled_members
from trainers.tensordict.optimization.optimizer import (
    ParamGroupFreezer,
    load_optimizer_tensors,
    optimizer_tensors,
)
from trainers.tensordict.states import snapshots
from trainers.tensordict.states.state import State, TensorTree, check_same_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ratchet.agents.actor_critic import ActorCritic
    from trainers.tensordict.collectors import RolloutCollector
    from trainers.tensordict.objectives.base import Objective
    from trainers.tensordict.objectives.value_estimators import MaskedGae
    from trainers.tensordict.optimization.replay import RolloutBuffer
    from trainers.tensordict.testing import TestPlayer


@dataclass
class Components:
    """Components used for training. Their state at creation is the untrained state."""

    agents: ActorCritic
    loss_module: Objective
    gae: MaskedGae | None
    collector: RolloutCollector
    test_collector: TestPlayer
    replay_buffer: RolloutBuffer
    optimizer: torch.optim.Optimizer
    freezer: ParamGroupFreezer
    schedule: dict[str, float] = field(default_factory=dict)
    """Further state of a custom learning-rate schedule."""
    replaced: tuple[str, ...] = ()
    """Agents replaced by partners in a phase, see :mod:`ratchet.parameters.curriculum`."""
    originals: TensorTree = field(default_factory=dict)
    """The original weights of these agents."""
    pool: TensorTree = field(default_factory=dict)
    """Earlier versions of agents to sample from."""
    untrained: State = field(init=False)

    def __post_init__(self) -> None:
        self.untrained = self.take_state(0, "initial_state")

    def params(self) -> dict[str, nn.Parameter]:
        """Return all parameters of the agents and the loss by unique names."""
        loss_tensors = snapshots.loss_tensors(self.loss_module, self.agents)
        mine = {f"loss.{n}": p for n, p in loss_tensors.items() if isinstance(p, nn.Parameter)}
        return {**dict(self.agents.named_parameters()), **mine}

    def take_state(self, iteration: int, stage: str) -> State:
        """Copy everything that the next iteration depends on."""
        names = {id(param): name for name, param in self.params().items()}
        playing = snapshots.take_agents(self.agents)
        return State(
            iteration=iteration,
            stage=stage,
            agents={
                **playing,
                **{name: self.originals.get(name, {}) for name in self.replaced},
            },
            normalization=snapshots.take_normalization(self.agents),
            optimizer=optimizer_tensors(self.optimizer, names),
            controllers=snapshots.take_controllers(self.loss_module, self.agents),
            episodes=snapshots.take_episodes(self.collector),
            schedule=dict(self.schedule),
            data_cursor=self.collector.cursor.state_dict(),
            stand_ins={name: playing[name] for name in self.replaced},
            pool=dict(self.pool),
        )

    def load_state(self, state: State) -> None:
        """Restore the result of :meth:`take_state`.

        Raises StateError if the state belongs to other agents, another loss or another dataset.
        """
        self.originals = {name: state.agents.get(name, {}) for name in self.replaced}
        self.pool = dict(state.pool)
        there = {name: state.stand_ins.get(name, {}) for name in self.replaced}
        snapshots.load_agents(self.agents, {**state.agents, **there})
        snapshots.load_normalization(self.agents, state.normalization)
        snapshots.load_controllers(self.loss_module, self.agents, state.controllers)
        load_optimizer_tensors(self.optimizer, state.optimizer, self.params())
        snapshots.load_episodes(self.collector, state.episodes)
        self.collector.cursor.load_state_dict(state.data_cursor)
        self.schedule = dict(state.schedule)

    def take_over(self, state: State, pool: TensorTree) -> None:
        """Start a phase with the agents of a state of other training parameters.

        Weights, normalisation and the data cursor are taken from the state; replacements of agents,
        the optimizer, adapted values of the loss, and episodes start over.
        """
        fresh = self.untrained
        begun = replace(
            fresh,
            iteration=state.iteration,
            agents=state.agents,
            normalization=state.normalization,
            data_cursor=state.data_cursor,
            pool=pool,
        )
        self.load_state(begun)


def read_pool(folders: Mapping[tuple[str, int], Path]) -> TensorTree:
    """Read earlier versions from the folders of states: agent and iteration → folder."""
    return {
        member_name(agent, iteration): State.load(folder).agents[agent]
        for (agent, iteration), folder in sorted(folders.items())
    }


def sample_from_pool(agents: ActorCritic, pool: TensorTree, *, seed: int, iteration: int) -> None:
    """Load into each agent with a pool the weights of one member, sampled for the iteration.

    Raises StateError if a member's network differs.
    """
    for agent, chosen in sampled_members(pool, seed=seed, iteration=iteration).items():
        live = snapshots.agent_tensors(agents)[agent]
        check_same_tensors(pool[chosen], live, f"agent {agent!r} of the pool, {chosen}")
        snapshots.copy_tensors(live, pool[chosen])
