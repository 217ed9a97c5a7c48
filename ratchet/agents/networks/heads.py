"""Heads shared by agents of all tensor scenarios: messages, decisions and values.

They read a body's output: one pooled representation, and one for each symbol that can be sent.
Random agents have uniform policies and constant values. Shape letters: b rows, K channels,
P positions, S symbols, R rounds, d features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.agents.actions import NUM_DECISIONS
from ratchet.agents.networks.layers import Initializer, Mlp
from ratchet.agents.parts import (
    AgentInput,
    AgentPolicyHead,
    AgentValueHead,
    PolicyLogits,
    Representation,
    SoloAgentHead,
)
from ratchet.errors import StateError

if TYPE_CHECKING:
    from ratchet.parameters.networks import NetworkAgentParameters

NUM_LABELS = 2


def _pooled(representation: Representation | None) -> Tensor:
    if representation is None or representation.pooled is None:
        raise StateError("a head got no pooled representation from the body, expected one.")
    return representation.pooled


def _symbols(representation: Representation | None) -> Tensor:
    if representation is None or representation.symbols is None:
        raise StateError("a head got no representations of symbols from the body, expected them.")
    return representation.symbols


def _with_round(pooled: Tensor, rounds: Tensor, max_rounds: int | None) -> Tensor:
    """Append the one-hot round to [b, d], unless ``max_rounds`` is None."""
    if max_rounds is None:
        return pooled
    steps = torch.arange(max_rounds, device=rounds.device)
    one_hot = (rounds.unsqueeze(-1) == steps).to(pooled.dtype)
    return torch.cat([pooled, one_hot], dim=-1)


def _sizes(d_in: int, d_hidden: int, num_layers: int, d_out: int) -> list[int]:
    return [d_in, *[d_hidden] * (num_layers - 1), d_out]


class PolicyHead(AgentPolicyHead):
    """Selects symbols, decides, and selects linear messages.

    ``shape`` is (K, P): channels that the agent may ever write to, positions. R is ``max_rounds``.
    """

    def __init__(
        self,
        parameters: NetworkAgentParameters,
        d_representation: int,
        shape: tuple[int, int],
        max_rounds: int,
        init: Initializer,
        *,
        decides: bool,
        d_linear: int | None = None,
    ) -> None:
        super().__init__()
        p = parameters
        self.shape = shape
        self.rounds = max_rounds if p.include_round_in_decider else None
        sizes = _sizes(d_representation, *p.message_selector_size, shape[0] * shape[1])
        # Without a last bias: one more for all symbols would change no probability.
        self.message_selector = Mlp(sizes, p.activation_function, init, last_bias=False)
        self.decider = None
        if decides:
            d_in = d_representation + (self.rounds or 0)
            sizes = _sizes(d_in, p.d_decider, p.num_decider_layers, NUM_DECISIONS)
            self.decider = Mlp(sizes, p.activation_function, init)
        self.linear_message_selector = None
        if d_linear is not None:
            layers = p.num_linear_message_selector_layers
            sizes = _sizes(d_representation, p.d_linear_message_selector, layers, d_linear)
            self.linear_message_selector = Mlp(sizes, p.activation_function, init)

    def forward(self, representation: Representation | None, inputs: AgentInput) -> PolicyLogits:
        """Return logits for b rows."""
        selected = self.message_selector(_symbols(representation))  # [b, S, K·P]
        decision = linear = None
        if self.decider is not None:
            pooled = _with_round(_pooled(representation), inputs.round, self.rounds)
            decision = self.decider(pooled)
        if self.linear_message_selector is not None:
            linear = self.linear_message_selector(_pooled(representation))
        message = selected.transpose(1, 2).unflatten(1, self.shape)
        return PolicyLogits(message=message, decision=decision, linear_message=linear)


class ValueHead(AgentValueHead):
    """Estimates the return from the pooled representation.

    Estimates start from ``mid_point``, the middle of the agent's possible rewards. R is
    ``max_rounds``.
    """

    def __init__(
        self,
        parameters: NetworkAgentParameters,
        d_representation: int,
        max_rounds: int,
        init: Initializer,
        mid_point: float,
    ) -> None:
        super().__init__()
        p = parameters
        self.rounds = max_rounds if p.include_round_in_value else None
        sizes = _sizes(d_representation + (self.rounds or 0), p.d_value, p.num_value_layers, 1)
        self.mlp = Mlp(sizes, p.activation_function, init)
        torch.nn.init.constant_(self.mlp.layers[-1].bias, mid_point)  # type: ignore[arg-type]

    def forward(self, representation: Representation | None, inputs: AgentInput) -> Tensor:
        """Return values f32 [b]."""
        pooled = _with_round(_pooled(representation), inputs.round, self.rounds)
        values: Tensor = self.mlp(pooled)
        return values.squeeze(-1)


class SoloHead(SoloAgentHead):
    """Predicts the label without any conversation; of the parameters it has the decider's sizes.

    Reads the pooled representation and the mean over those of the symbols that exist, so that every
    parameter of the body learns, those included that only a message selector reads.
    """

    def __init__(
        self, parameters: NetworkAgentParameters, d_representation: int, init: Initializer
    ) -> None:
        super().__init__()
        p = parameters
        sizes = _sizes(2 * d_representation, p.d_decider, p.num_decider_layers, NUM_LABELS)
        self.mlp = Mlp(sizes, p.activation_function, init)

    def forward(self, representation: Representation | None, inputs: AgentInput) -> Tensor:
        """Return logits f32 [b, 2] of y."""
        pooled, symbols = _pooled(representation), _symbols(representation)
        weight = None if representation is None else representation.symbol_weight
        if weight is None:
            mean = symbols.mean(1)
        else:
            weight = weight.unsqueeze(1)  # [b, 1, S]
            mean = torch.bmm(weight, symbols).squeeze(1) / weight.sum(-1)
        logits: Tensor = self.mlp(torch.cat([pooled, mean], dim=-1))
        return logits


class RandomPolicyHead(AgentPolicyHead):
    """Policy head with equal logits for all symbols and decisions; masks exclude others."""

    def __init__(self, *, decides: bool, d_linear: int | None = None) -> None:
        super().__init__()
        self.decides = decides
        self.d_linear = d_linear

    def forward(self, representation: Representation | None, inputs: AgentInput) -> PolicyLogits:
        """Return zeros."""
        rows, device = inputs.round.shape[0], inputs.round.device
        return PolicyLogits(
            message=torch.zeros(inputs.message.shape, device=device),
            decision=torch.zeros(rows, 3, device=device) if self.decides else None,
            linear_message=(
                None if self.d_linear is None else torch.zeros(rows, self.d_linear, device=device)
            ),
        )


class ConstantValueHead(AgentValueHead):
    """Expects the same return everywhere; zero for random agents."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = value

    def forward(self, representation: Representation | None, inputs: AgentInput) -> Tensor:
        """Return the constant for b rows."""
        return torch.full((inputs.round.shape[0],), self.value, device=inputs.round.device)
