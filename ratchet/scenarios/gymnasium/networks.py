"""The parts of an agent that acts in an environment, and their initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ratchet.agents.fused import may_fuse
from ratchet.agents.layers import Initializer
from ratchet.agents.parts import AgentPart
from ratchet.agents.tape import Tape, Var
from ratchet.scenarios.gymnasium.perceptron import (
    RECORDED_ACTIVATIONS,
    Layer,
    plain_perceptron,
    record_perceptron,
)
from ratchet.scenarios.gymnasium.spaces import AgentSpace, ContinuousActions, DiscreteActions
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.parameters import GymnasiumAgentParameters


class Body(AgentPart):
    """Hidden layers, each with the activation function after it.

    Parameters
    ----------
    sizes
        d_in, then the size of every layer.
    init
        Where weights come from.
    """

    def __init__(self, sizes: Sequence[int], init: Initializer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(init.linear(d_in, d_out) for d_in, d_out in pairwise(sizes))

    @property
    def weights(self) -> list[Layer]:
        """Weight and bias of each layer."""
        layers = cast(Iterator[nn.Linear], iter(self.layers))
        return [(layer.weight, layer.bias) for layer in layers]


class Head(AgentPart):
    """One linear layer; of a policy with continuous actions also their log deviations.

    Parameters
    ----------
    d_in, d_out
        Sizes.
    init
        Where weights come from.
    log_std
        The initial log deviations f32 [K], if there are any.
    """

    def __init__(
        self, d_in: int, d_out: int, init: Initializer, log_std: Tensor | None = None
    ) -> None:
        super().__init__()
        self.layer = init.linear(d_in, d_out)
        self.log_std = None if log_std is None else nn.Parameter(log_std)

    @property
    def weights(self) -> Layer:
        """Weight and bias."""
        return self.layer.weight, self.layer.bias


@dataclass
class ControlAgent:
    """One agent: what it perceives and does, and its parts; none if it acts at random.

    Attributes
    ----------
    value_body
        The critic's own body; None where it shares the policy's.
    """

    name: str
    parameters: GymnasiumAgentParameters
    space: AgentSpace
    body: Body | None = None
    policy_head: Head | None = None
    value_head: Head | None = None
    value_body: Body | None = None
    solo_head: None = None

    def parts(self) -> dict[str, AgentPart]:
        """List the parts there are, by name."""
        everything = {
            "body": self.body,
            "value_body": self.value_body,
            "policy_head": self.policy_head,
            "value_head": self.value_head,
        }
        return {name: part for name, part in everything.items() if part is not None}

    @property
    def towers(self) -> list[tuple[list[Layer], list[Layer]]]:
        """Hidden layers and heads of each perceptron: policy and critic together, or one each."""
        assert self.body is not None  # not asked of random agents
        assert self.policy_head is not None
        assert self.value_head is not None
        policy, value = self.policy_head.weights, self.value_head.weights
        if self.value_body is None:
            return [(self.body.weights, [policy, value])]
        return [(self.body.weights, [policy]), (self.value_body.weights, [value])]

    @property
    def is_random(self) -> bool:
        """Whether there is nothing to compute."""
        return self.body is None

    @property
    def records(self) -> bool:
        """Whether the agent can be put on a tape."""
        return self.parameters.activation_function in RECORDED_ACTIVATIONS

    def policy_and_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Apply policy and critic to observations f32 [B, d]: [B, outputs] and [B, 1]."""
        if self.is_random:
            return self._nothing(x)
        name = self.parameters.activation_function
        said, worth = (
            out for layers, heads in self.towers for out in plain_perceptron(x, layers, heads, name)
        )
        return said, worth

    def record_policy_and_value(self, tape: Tape, x: Tensor) -> tuple[Var, Var]:
        """Do what :meth:`policy_and_value` does, on a tape."""
        if self.is_random:
            said, worth = (Var(nothing, needs_grad=False) for nothing in self._nothing(x))
            return said, worth
        name = self.parameters.activation_function
        said, worth = (
            out
            for layers, heads in self.towers
            for out in record_perceptron(tape, x, layers, heads, name)
        )
        return said, worth

    def policy(self, x: Tensor) -> Tensor:
        """Apply the policy alone: f32 [B, d] → [B, outputs]."""
        if self.is_random:
            return self._nothing(x)[0]
        layers, heads = self.towers[0]
        name = self.parameters.activation_function
        if self.records and may_fuse(x) and not torch.is_grad_enabled():
            return record_perceptron(Tape(keeps=False), x, layers, heads[:1], name)[0].value
        return plain_perceptron(x, layers, heads[:1], name)[0]

    def value(self, x: Tensor) -> Tensor:
        """Apply the critic alone: f32 [B, d] → [B, 1]."""
        if self.is_random:
            return self._nothing(x)[1]
        layers, heads = self.towers[-1]
        return plain_perceptron(x, layers, heads[-1:], self.parameters.activation_function)[0]

    def _nothing(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = torch.zeros(len(x), num_outputs(self.space), device=x.device)
        return outputs, torch.zeros(len(x), 1, device=x.device)


def num_outputs(space: AgentSpace) -> int:
    """Say how many numbers a policy gives: logits, or means."""
    if isinstance(space.actions, DiscreteActions):
        return sum(space.actions.sizes)
    return space.actions.num_factors


def build_agent(
    hyper_params: HyperParameters,
    name: str,
    section: GymnasiumAgentParameters,
    space: AgentSpace,
    device: str | torch.device,
) -> ControlAgent:
    """Build an agent with its initial weights.

    Each part's are drawn from (seed, "initial_state", 0, part, name): hidden layers with the
    section's gain, the policy's last with ``policy_gain``, the critic's with 1.
    """
    if section.is_random:
        return ControlAgent(name, section, space)

    def init(part: str, gain: float) -> Initializer:
        generator = torch_generator(hyper_params.seed, "initial_state", 0, part, name)
        return Initializer(generator, section.use_orthogonal_initialisation, gain, device)

    sizes = [space.observation_size, *section.hidden_sizes]
    gain = section.orthogonal_initialisation_gain
    log_std = None
    if isinstance(space.actions, ContinuousActions):
        shape = (space.actions.num_factors,)
        log_std = torch.full(shape, section.initial_log_std, device=device)
    shares = hyper_params.rl.use_shared_body
    return ControlAgent(
        name,
        section,
        space,
        body=Body(sizes, init("body", gain)),
        policy_head=Head(
            sizes[-1], num_outputs(space), init("policy_head", section.policy_gain), log_std
        ),
        value_head=Head(sizes[-1], 1, init("value_head", 1.0)),
        value_body=None if shares else Body(sizes, init("value_body", gain)),
    )
