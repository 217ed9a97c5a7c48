"""Rates what agents did: log-probability, entropy and value.

Shape letters: B frames, b rows in which an agent acts, F factors of its action, W outcomes of the
widest factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ratchet.agents.actions.distributions import FactorisedCategorical
from ratchet.agents.actions.packing import pack_logits
from ratchet.agents.parts import AgentPolicyHead
from ratchet.agents.turns import Turn, take
from ratchet.errors import StateError

NUM_RATINGS = 3
"""Log-probability, entropy, value."""


@dataclass(frozen=True)
class TakenActions:
    """What an agent could have done in its rows, and what it did.

    Attributes
    ----------
    allowed
        bool [b, F, W].
    counts
        Which factors it really acts on, bool [b, F].
    actions
        i64 [b, F].
    """

    allowed: Tensor
    counts: Tensor
    actions: Tensor

    def take(self, rows: Tensor) -> TakenActions:
        """Take rows."""
        return TakenActions(*(take(t, rows) for t in (self.allowed, self.counts, self.actions)))


def rate(turn: Turn, taken: TakenActions) -> Tensor:
    """Return log-probability, entropy and value of an agent's actions, with gradients: f32 [3, b].

    Raises
    ------
    StateError
        If the agent has no policy head.
    """
    logits = pack_logits(policy_head_of(turn)(turn.shared, turn.inputs), turn.role.layout)
    factors = FactorisedCategorical(logits, taken.allowed, taken.counts)
    log_prob, entropy = factors.log_prob_and_entropy(taken.actions)
    value = values_of(turn)
    return torch.stack([log_prob, entropy, torch.zeros_like(log_prob) if value is None else value])


def policy_head_of(turn: Turn) -> AgentPolicyHead:
    """Return the head that speaks for an agent.

    Raises
    ------
    StateError
        If it has none.
    """
    head = turn.agent.policy_head
    if head is None:
        raise StateError(
            f"agent {turn.agent.name!r} has no policy head; expected one. Build the scenario"
            " for a trainer of type rl."
        )
    return head


def values_of(turn: Turn) -> Tensor | None:
    """Return an agent's estimated returns f32 [b]; None without a value head."""
    agent, inputs = turn.agent, turn.inputs
    if agent.value_head is None:
        return None
    seen = turn.shared
    if agent.value_body is not None:
        # without what the policy's body has made
        inputs = replace(inputs, invariant=None, precomputed=None)
        seen = agent.value_body(inputs)
    return cast(Tensor, agent.value_head(seen, inputs))


def lay_out(
    ratings: Sequence[tuple[Turn, Tensor]], size: int, num_agents: int, device: torch.device
) -> Tensor:
    """Lay ratings [3, b] of agents out as f32 [3, B, A], 0 where an agent does not act."""
    laid = torch.zeros(NUM_RATINGS, size * num_agents, device=device)
    if not ratings:
        return laid.view(NUM_RATINGS, size, num_agents)
    every = torch.arange(size, device=device)
    places = [
        (every if turn.rows is None else turn.rows) * num_agents + turn.role.index
        for turn, _ in ratings
    ]
    values = torch.cat([rating for _, rating in ratings], dim=1)
    return laid.index_copy(1, torch.cat(places), values).view(NUM_RATINGS, size, num_agents)
