"""Pools of earlier states of agents, of which one plays in each iteration of a phase."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ratchet.seeding import torch_generator

_BETWEEN = "@"


def member_name(agent: str, iteration: int) -> str:
    """Return the name of the member of an agent's pool from after an iteration."""
    return f"{agent}{_BETWEEN}{iteration}"


def sampled_members(names: Iterable[str], *, seed: int, iteration: int) -> dict[str, str]:
    """Return each agent's member, sampled from those of its pool for an iteration."""
    members: dict[str, list[str]] = {}
    for name in sorted(names, key=_agent_and_iteration):
        members.setdefault(_agent_and_iteration(name)[0], []).append(name)
    chosen: dict[str, str] = {}
    for agent, of_agent in members.items():
        draw = torch_generator(seed, "train", iteration, "pool", agent)
        chosen[agent] = of_agent[int(torch.randint(len(of_agent), (1,), generator=draw))]
    return chosen


def _agent_and_iteration(name: str) -> tuple[str, int]:
    agent, _, iteration = name.rpartition(_BETWEEN)
    return agent, int(iteration)
