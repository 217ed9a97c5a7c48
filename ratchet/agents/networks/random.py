"""Agents that play at random: uniform over whatever is allowed, value zero, no parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.agents.parts import (
    AgentInput,
    AgentPolicyHead,
    AgentValueHead,
    PolicyLogits,
    Representation,
)


class RandomPolicyHead(AgentPolicyHead):
    """Gives every symbol and decision the same logit; masks do the rest."""

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
