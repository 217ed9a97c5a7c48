"""Packs a policy head's logits, and the masks over them, into one tensor of factors, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.actions.distributions import FactorLayout, MultiAgentDistribution
from ratchet.agents.parts import PolicyLogits
from ratchet.errors import StateError

if TYPE_CHECKING:
    from ratchet.agents.roles import Channels

NUM_DECISIONS = 3


def pack_logits(logits: PolicyLogits, layout: FactorLayout) -> Tensor:
    """Lay the factors side by side: f32 [b, F, max(S, 3, d)]; padding is 0 and has to be masked.

    Logits are messages' [b, K, P, S], decisions' [b, 3], linear messages' [b, d].

    Raises
    ------
    StateError
        If the head gives no logits for something the agent does.
    """
    factors = [logits.message.flatten(1, 2)]
    if layout.decides:
        factors.append(_one_factor(logits.decision, "decision"))
    if layout.linear:
        factors.append(_one_factor(logits.linear_message, "linear_message"))
    if len(factors) == 1:
        return factors[0]
    width = max(factor.shape[-1] for factor in factors)
    return torch.cat([F.pad(factor, (0, width - factor.shape[-1])) for factor in factors], dim=1)


def _one_factor(logits: Tensor | None, what: str) -> Tensor:
    if logits is None:
        raise StateError(f"the policy head gave no {what} logits, expected some for this agent.")
    return logits.unsqueeze(1)


def pack_allowed(
    symbols: Tensor, layout: FactorLayout, restriction: Tensor, d_linear: int | None
) -> Tensor:
    """Lay the masks of the factors side by side: bool [b, F, max(S, 3, d)], as the packed logits.

    ``symbols`` are those that may be said, bool, broadcastable to [b, K, P, S]. ``restriction`` is
    i64 [b]: 0 any decision, 1 must go on (only 2), 2 must decide (0 or 1).
    """
    b, num_symbols = len(restriction), symbols.shape[-1]
    said = symbols.expand(b, len(layout.channels), layout.message_size, num_symbols).flatten(1, 2)
    if not (layout.decides or layout.linear):
        return said
    width = max(num_symbols, NUM_DECISIONS * layout.decides, (d_linear or 0) * layout.linear)
    factors = layout.num_message_factors + layout.decides + layout.linear
    allowed = torch.zeros((b, factors, width), dtype=torch.bool, device=symbols.device)
    allowed[:, : layout.num_message_factors, :num_symbols] = said
    if layout.decides:
        at = layout.decision_index
        allowed[:, at, :2] = (restriction != 1).unsqueeze(-1)
        allowed[:, at, 2] = restriction != 2
    if layout.linear:
        allowed[:, layout.linear_index, :d_linear] = True
    return allowed


def pack_counts(
    active: Tensor, can_decide: Tensor, layout: FactorLayout, writes: Channels | None
) -> Tensor:
    """Return which factors an agent really acts on, bool [b, F].

    ``active`` bool [b, C] are the channels that it is active in, ``can_decide`` bool [b] whether it
    decides, ``writes`` the K channels that it may ever write to: None for all.
    """
    if writes is not None:
        active = writes.take_from(active, 1)
    counts = [active.repeat_interleave(layout.message_size, dim=1)]
    if layout.decides:
        counts.append(can_decide.unsqueeze(1))
    if layout.linear:
        counts.append(active.any(1, keepdim=True))
    return torch.cat(counts, dim=1) if len(counts) > 1 else counts[0]


def unpack_logits(dist: MultiAgentDistribution, symbols: int) -> tuple[Tensor, Tensor]:
    """Lay the logits of all agents over B frames out by agent and channel; differentiable.

    Messages' f32 [B, A, C, P, S] and decisions' [B, A, 3]: 0 where an agent does not act, minus
    infinity for what it may not say or decide.
    """
    num_agents, num_channels, positions = dist.shape
    size = (dist.batch_size, num_agents)
    message = torch.zeros((*size, num_channels, positions, symbols), device=dist.device)
    decision = torch.zeros((*size, NUM_DECISIONS), device=dist.device)
    for agent in dist.agents.values():
        layout = agent.layout
        rows: Tensor | slice = slice(None) if agent.rows is None else agent.rows
        packed = agent.factors.logits.masked_fill(~agent.factors.counts.unsqueeze(-1), 0.0)
        said = packed[:, : layout.num_message_factors, :symbols]
        said = said.reshape(len(said), len(layout.channels), positions, symbols)
        for place, channel in enumerate(layout.channels):
            message[rows, agent.index, channel] = said[:, place]
        if layout.decides:
            decision[rows, agent.index] = packed[:, layout.decision_index, :NUM_DECISIONS]
    return message, decision
