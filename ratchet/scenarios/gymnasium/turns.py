"""Turns in environments: the agents that act in a step, and their legal actions.

In states, ``("agents", "active")`` is bool [E, A, 1] and ``("agents", "legal")`` bool [E, A, N];
both are missing where all agents always act, with any action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.errors import IllegalActionError, ParameterError
from ratchet.scenarios.gymnasium.spaces import AgentSpaces, DiscreteActions


class Turn(NamedTuple):
    """The next acting agents and their actions: in one episode, or in E.

    ``acting`` is bool [A] or [E, A]. ``legal``, if given, is bool [A, N] or [E, A, N], for agents
    with one choice of at most N actions; it is not read for agents that do not act.
    """

    acting: Tensor
    legal: Tensor | None = None


def stack_turns(turns: Sequence[Turn | None]) -> Turn | None:
    """Return the turns of E episodes as one; None if all agents always act."""
    some = [turn for turn in turns if turn is not None]
    if not some:
        return None
    legal = [turn.legal for turn in some if turn.legal is not None]
    return Turn(torch.stack([turn.acting for turn in some]), torch.stack(legal) if legal else None)


def turn_entries(turn: Turn | None, device: torch.device) -> dict[str, Tensor]:
    """Return a turn of E episodes as entries of ``agents`` in their states."""
    if turn is None:
        return {}
    entries = {"active": turn.acting.unsqueeze(-1), "legal": turn.legal}
    return {name: entry.to(device) for name, entry in entries.items() if entry is not None}


def check_turn(turn: Turn | None, spaces: AgentSpaces, name: str) -> None:
    """Refuse a turn that does not fit the agents of the environment ``name``."""
    if turn is None:
        return
    num_agents = len(spaces.names)
    if turn.acting.shape[-1:] != (num_agents,):
        raise ParameterError(
            f"environment {name!r}: got acting agents of the shape {tuple(turn.acting.shape)},"
            f" expected (…, {num_agents}): one Boolean for each agent."
        )
    if turn.legal is None:
        return
    actions = [space.actions for space in spaces.by_name.values()]
    sizes = [each.sizes for each in actions if isinstance(each, DiscreteActions)]
    is_one_choice = len(sizes) == num_agents and all(len(each) == 1 for each in sizes)
    expected = (num_agents, max((sum(each) for each in sizes), default=0))
    if not is_one_choice or turn.legal.shape[-2:] != expected:
        raise ParameterError(
            f"environment {name!r}: got legal actions of the shape {tuple(turn.legal.shape)} for"
            f" agents with {actions}, expected (…, {expected[0]}, {expected[1]}), and one discrete"
            " choice of each agent."
        )


def check_actions(td: TensorDictBase, spaces: AgentSpaces, name: str) -> None:
    """Refuse illegal actions of agents that act in states [E] of the environment ``name``."""
    legal = td.get(("agents", "legal"), None)
    if legal is None:
        return
    actions = td.get(("agents", "action"))[..., :1]
    is_index = (actions >= 0) & (actions < legal.shape[-1])
    is_legal = legal.gather(-1, actions.clamp(0, legal.shape[-1] - 1)) & is_index
    illegal = (td.get(("agents", "active")) & ~is_legal).squeeze(-1).nonzero().tolist()
    if illegal:
        episode, agent = illegal[0]
        raise IllegalActionError(
            f"environment {name!r}: {spaces.names[agent]!r} chose the action"
            f" {int(actions[episode, agent])}, expected a legal one:"
            f" {legal[episode, agent].nonzero().flatten().tolist()}. A custom policy reads them"
            " from ('agents', 'legal')."
        )
