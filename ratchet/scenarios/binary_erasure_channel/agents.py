"""Bodies of agents in the binary-erasure-channel game, and how the agents are built."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.building import POOLED, SYMBOLS, AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer, Mlp, NormAndNoise
from ratchet.agents.parts import AgentBody, AgentInput, Perception, Prepared, Representation
from ratchet.scenarios.binary_erasure_channel.dataset import ERASED
from ratchet.scenarios.binary_erasure_channel.environment import NUM_SYMBOLS
from ratchet.scenarios.binary_erasure_channel.parameters import (
    BinaryErasureChannelAgentParameters,
)

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

NUM_SIGHTS = ERASED + 1


class ErasurePerception(Perception):
    """What agents may see of the bit, one-hot; both symbols may always be said."""

    def prepare(self, data: TensorDictBase) -> Prepared:
        """Make deals ready: ``bit`` and ``observation`` f32 [b, 3] of 0, 1 and erased."""
        return {
            key: F.one_hot(data.get(key), NUM_SIGHTS).to(torch.float32)
            for key in ("bit", "observation")
        }

    def num_symbols(self, data: Prepared) -> int:
        """Return 2."""
        return NUM_SYMBOLS

    def allowed_symbols(self, is_prover: bool, data: Prepared, message: Tensor) -> Tensor:
        """Allow both."""
        return torch.ones(1, 1, 1, NUM_SYMBOLS, dtype=torch.bool, device=message.device)


class ErasureBody(AgentBody):
    """A multilayer perceptron over the conversation and what the agent sees of the bit.

    It sees ``bit`` or ``observation``; ``d_conversation`` are the features of the history of
    messages, linear ones included.
    """

    def __init__(
        self,
        parameters: BinaryErasureChannelAgentParameters,
        sees: str,
        d_conversation: int,
        d_representation: int,
        init: Initializer,
        read: Collection[str] = (POOLED, SYMBOLS),
    ) -> None:
        super().__init__()
        d_body = parameters.d_body
        self.sees = sees
        sizes = [d_conversation + NUM_SIGHTS, *[d_body] * parameters.num_body_layers]
        self.mlp = Mlp(sizes, parameters.activation_function, init)
        self.norm_and_noise = NormAndNoise(parameters, d_body, init.device)
        self.pooled_out = init.linear(d_body, d_representation) if POOLED in read else None
        self.symbols_out = None
        if SYMBOLS in read:
            self.symbols_out = init.linear(d_body, NUM_SYMBOLS * d_representation)

    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b conversations."""
        features = [inputs.history.flatten(1), inputs.data[self.sees]]
        if inputs.linear_history is not None:
            features.append(inputs.linear_history.flatten(1))
        hidden = self.norm_and_noise(self.mlp(torch.cat(features, dim=1)), inputs.generator)
        symbols = None
        if self.symbols_out is not None:
            symbols = self.symbols_out(hidden).unflatten(1, (NUM_SYMBOLS, -1))
        return Representation(
            pooled=None if self.pooled_out is None else self.pooled_out(hidden), symbols=symbols
        )


class ErasureAgentBuilder(AgentBuilder[BinaryErasureChannelAgentParameters]):
    """Puts the common heads on these bodies. Provers see the bit, others what is not erased."""

    section_class = BinaryErasureChannelAgentParameters

    def build_perception(self, hyper_params: HyperParameters) -> ErasurePerception:
        """Return how deals are made ready."""
        return ErasurePerception()

    def build_body(
        self,
        plan: AgentPlan[BinaryErasureChannelAgentParameters],
        init: Initializer,
        read: Collection[str],
    ) -> ErasureBody:
        """Make a body."""
        return ErasureBody(
            plan.section,
            "bit" if plan.name in plan.handler.prover_names else "observation",
            plan.d_history * NUM_SYMBOLS + (plan.d_linear_history or 0),
            plan.hyper_params.d_representation,
            init,
            read,
        )
