"""Rates what agents did: log-probability, entropy and value, all of an agent in one operation.

Shape letters: B frames, b rows in which an agent acts, F factors of its action, W outcomes of the
widest factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from ratchet.agents.distributions import FactorisedCategorical, FactorLayout
from ratchet.agents.fused import may_fuse
from ratchet.agents.packing import pack_logits
from ratchet.agents.parts import AgentInput, AgentPolicyHead
from ratchet.agents.recording import (
    RecordableBody,
    RecordableHead,
    RecordedLogits,
    RecordedRepresentation,
    may_record,
)
from ratchet.agents.scores import record_scores
from ratchet.agents.tape import Tape, Var, run_recorded
from ratchet.agents.turns import Turn, take
from ratchet.errors import StateError

NUM_RATINGS = 3
"""Log-probability, entropy, value."""


@dataclass(frozen=True)
class Choice:
    """What an agent could have done in its rows, and what it did.

    Attributes
    ----------
    allowed
        bool [b, F, W].
    weights
        1 for factors that it really acts on, else 0, f32 [b, F].
    actions
        i64 [b, F].
    """

    allowed: Tensor
    weights: Tensor
    actions: Tensor

    def take(self, rows: Tensor) -> Choice:
        """Take rows."""
        return Choice(*(take(t, rows) for t in (self.allowed, self.weights, self.actions)))


def rate(turn: Turn, choice: Choice) -> Tensor:
    """Rate an agent's actions, with gradients: f32 [3, b].

    Raises
    ------
    StateError
        If the agent has no policy head.
    """

    def plain() -> list[Tensor]:
        return [_rate_by_parts(turn, choice)]

    if not _records(turn):
        return plain()[0]
    return run_recorded(lambda tape: [_record_rating(tape, turn, choice)], plain)[0]


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
    """Estimate an agent's returns f32 [b]; None without a value head."""
    agent, inputs = turn.agent, turn.inputs
    if agent.value_head is None:
        return None
    seen = turn.shared
    if agent.value_body is not None:
        inputs = _for_another_body(inputs)
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


def _rate_by_parts(turn: Turn, choice: Choice) -> Tensor:
    """Call one part after the other."""
    logits = pack_logits(policy_head_of(turn)(turn.shared, turn.inputs), turn.role.layout)
    factors = FactorisedCategorical(logits, choice.allowed, choice.weights.bool())
    log_prob, entropy = factors.log_prob_and_entropy(choice.actions)
    value = values_of(turn)
    return torch.stack([log_prob, entropy, torch.zeros_like(log_prob) if value is None else value])


def _records(turn: Turn) -> bool:
    """Say whether a whole agent may be recorded on one tape."""
    agent, history = turn.agent, turn.inputs.history
    parts: list[nn.Module | None] = [agent.body, agent.policy_head, agent.value_head]
    if agent.value_body is not None:
        parts.append(agent.value_body)
    recordable = all(part is not None and may_record(part) for part in parts)
    return recordable and may_fuse(history) and not history.requires_grad


def _record_rating(tape: Tape, turn: Turn, choice: Choice) -> Var:
    agent, inputs = turn.agent, turn.inputs
    seen = cast(RecordableBody, agent.body).record(tape, inputs)
    head = cast(RecordableHead[RecordedLogits], agent.policy_head)
    logits = _pack_recorded(
        tape, head.record(tape, seen, inputs), turn.role.layout, choice.allowed.shape
    )
    scores = record_scores(tape, logits, choice.allowed, choice.weights, choice.actions)
    value = _record_value(tape, turn, seen, inputs)

    def back(grad: Tensor) -> None:
        scores.add_grad(grad[:2])
        value.add_grad(grad[2].unsqueeze(1))

    result = Var(torch.cat([scores.value, value.value.view(1, -1)]))
    tape.record(back, result)
    return result


def _record_value(tape: Tape, turn: Turn, seen: RecordedRepresentation, inputs: AgentInput) -> Var:
    if turn.agent.value_body is not None:
        inputs = _for_another_body(inputs)
        seen = cast(RecordableBody, turn.agent.value_body).record(tape, inputs)
    return cast(RecordableHead[Var], turn.agent.value_head).record(tape, seen, inputs)


def _for_another_body(inputs: AgentInput) -> AgentInput:
    """Leave out what the policy's body has made."""
    return replace(inputs, invariant=None, precomputed=None)


def _pack_recorded(
    tape: Tape, logits: RecordedLogits, layout: FactorLayout, shape: torch.Size
) -> Var:
    """Lay factors side by side [b, F, W], as :func:`pack_logits` does."""
    single = {layout.decision_index: logits.decision, layout.linear_index: logits.linear_message}
    others = {at: var for at, var in single.items() if var is not None}
    messages, symbols = layout.num_message_factors, logits.message.value.shape[1]
    packed = logits.message.value.transpose(1, 2)
    if packed.shape != shape:
        packed = packed.new_zeros(shape)
        packed[:, :messages, :symbols] = logits.message.value.transpose(1, 2)
        for at, var in others.items():
            packed[:, at, : var.value.shape[1]] = var.value

    def back(grad: Tensor) -> None:
        logits.message.add_grad(grad[:, :messages, :symbols].transpose(1, 2))
        for at, var in others.items():
            var.add_grad(grad[:, at, : var.value.shape[1]])

    result = Var(packed)
    tape.record(back, result)
    return result
