"""Nim on tensors: two agents in turn take one to three of five sticks; the last stick wins."""

from __future__ import annotations

import torch

from ratchet.scenarios.gymnasium.dynamics import Dynamics, Transition
from ratchet.scenarios.gymnasium.spaces import AgentSpace, DiscreteActions
from ratchet.scenarios.gymnasium.turns import Turn


class Nim(Dynamics):
    """The first player depends on the seed; an observation is the number of sticks."""

    @property
    def agents(self):
        space = AgentSpace(1, DiscreteActions((3,)))
        return {"first": space, "second": space}

    def first_state(self, seeds):
        return {"sticks": torch.full_like(seeds, 5), "player": seeds % 2}

    def observe(self, state):
        return state["sticks"].float().view(-1, 1, 1).expand(-1, 2, 1)

    def turn(self, state):
        acting = torch.nn.functional.one_hot(state["player"], 2).bool()
        legal = torch.arange(1, 4) <= state["sticks"].view(-1, 1)
        return Turn(acting, legal.unsqueeze(1).expand(-1, 2, 3))

    def step(self, state, actions):
        player = state["player"]
        sticks = state["sticks"] - 1 - actions[:, :, 0].gather(1, player.unsqueeze(1)).squeeze(1)
        over = sticks == 0
        signs = 2 * torch.nn.functional.one_hot(player, 2) - 1
        return Transition(
            {"sticks": sticks, "player": 1 - player}, signs * over.unsqueeze(1).float(), over
        )
