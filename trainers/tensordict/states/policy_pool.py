"""Pools of earlier versions of agents, from which each iteration samples weights.

A pool is a part of the state, ``AGENT@ITERATION`` → name → tensor, so that a stage needs no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ratchet.seeding import torch_generator
from trainers.tensordict.states.snapshots import agent_tensors, copy_tensors
from trainers.tensordict.states.state import State, TensorTree, check_same_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ratchet.agents.actor_critic import ActorCritic

_BETWEEN = "@"


def read_pool(folders: Mapping[tuple[str, int], Path]) -> TensorTree:
    """Read earlier versions from the folders of states: agent and iteration → folder."""
    return {
        f"{agent}{_BETWEEN}{iteration}": State.load(folder).agents[agent]
        for (agent, iteration), folder in sorted(folders.items())
    }


def sample_from_pool(agents: ActorCritic, pool: TensorTree, *, seed: int, iteration: int) -> None:
    """Load into each agent with a pool the weights of one member, sampled for the iteration.

    Raises StateError if a member's network differs.
    """
    members: dict[str, list[str]] = {}
    for name in sorted(pool, key=_place):
        members.setdefault(_place(name)[0], []).append(name)
    for agent, names in members.items():
        draw = torch_generator(seed, "train", iteration, "pool", agent)
        chosen = names[int(torch.randint(len(names), (1,), generator=draw))]
        live = agent_tensors(agents)[agent]
        check_same_tensors(pool[chosen], live, f"agent {agent!r} of the pool, {chosen}")
        copy_tensors(live, pool[chosen])


def _place(name: str) -> tuple[str, int]:
    agent, _, iteration = name.rpartition(_BETWEEN)
    return agent, int(iteration)
