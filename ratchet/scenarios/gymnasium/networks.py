"""Networks of gymnasium agents, separate or shared between agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ratchet.agents.networks.layers import Initializer
from ratchet.agents.parts import AgentPart
from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.bodies import (
    AgentInputSpecs,
    ControlBody,
    NetworkInputs,
    NetworkInputSpec,
    RecurrentState,
    agent_input_specs,
    build_body,
    sees_images,
)
from ratchet.scenarios.gymnasium.spaces import AgentSpace, ContinuousActions, DiscreteActions
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.parameters import GymnasiumAgentParameters
    from ratchet.scenarios.gymnasium.spaces import AgentSpaces


class Head(AgentPart):
    """One linear layer; with continuous actions also their log deviations, f32 [K] at first."""

    def __init__(
        self, d_in: int, d_out: int, init: Initializer, log_std: Tensor | None = None
    ) -> None:
        super().__init__()
        self.layer = init.linear(d_in, d_out)
        self.log_std = None if log_std is None else nn.Parameter(log_std)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x f32 [B, d]."""
        out: Tensor = self.layer(x)
        return out


@dataclass
class ControlAgent:
    """One agent: its inputs, actions and parts; a random agent has no parts.

    ``value_body`` is the critic's body; None if it shares the policy's. Agents may share parts.
    """

    name: str
    parameters: GymnasiumAgentParameters
    space: AgentSpace
    body: ControlBody | None = None
    policy_head: Head | None = None
    value_head: Head | None = None
    value_body: ControlBody | None = None
    solo_head: None = None

    def parts(self) -> dict[str, AgentPart]:
        """Return the parts there are, by name."""
        everything = {
            "body": self.body,
            "value_body": self.value_body,
            "policy_head": self.policy_head,
            "value_head": self.value_head,
        }
        return {name: part for name, part in everything.items() if part is not None}

    @property
    def sees_images(self) -> bool:
        """Whether its observations are pixels, which are not normalised."""
        alone = NetworkInputSpec((0,), (self.space,))
        return self.body is not None and sees_images(alone, self.parameters)

    @property
    def memory_size(self) -> int:
        """The number of numbers that it remembers; 0 if it is not recurrent."""
        return sum(body.memory_size for body in (self.body, self.value_body) if body is not None)

    @property
    def is_random(self) -> bool:
        """Whether there is nothing to compute."""
        return self.body is None

    def policy_and_value(self, inputs: NetworkInputs) -> tuple[Tensor, Tensor]:
        """Apply policy and critic to their inputs in B frames: [B, outputs] and [B, 1]."""
        x = inputs.policy
        if self.body is None or self.policy_head is None or self.value_head is None:
            return self._nothing(x)
        if inputs.past is not None and self.memory_size:
            return self.remember(inputs, inputs.past)[:2]
        hidden = self.body(x)
        outputs = self.policy_head(hidden)
        worth = self.value_head(
            hidden if self.value_body is None else self.value_body(inputs.critic)
        )
        return outputs.to(x.dtype), worth.to(x.dtype)  # which mixed precision makes coarser

    def remember(
        self, inputs: NetworkInputs, past: RecurrentState
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return :meth:`policy_and_value`, and the recurrent state after it: [B, M]."""
        memory = past.memory.flatten(0, -2)
        if self.body is None or self.policy_head is None or self.value_head is None:
            return *self._nothing(inputs.policy), memory
        hidden, after = self.body.remember(inputs.policy, past)
        outputs, memories = self.policy_head(hidden), [after]
        if self.value_body is not None:
            size = self.body.memory_size
            hidden, after = self.value_body.remember(
                inputs.critic, past._replace(memory=past.memory[..., size:])
            )
            memories.append(after)
        worth, dtype = self.value_head(hidden), inputs.policy.dtype
        unused = memory[:, self.memory_size :]  # of agents with a larger state
        return outputs.to(dtype), worth.to(dtype), torch.cat([*memories, unused], -1).to(dtype)

    def policy(self, x: Tensor) -> Tensor:
        """Apply the policy alone, which remembers nothing: f32 [B, d] → [B, outputs]."""
        if self.body is None or self.policy_head is None:
            return self._nothing(x)[0]
        return cast(Tensor, self.policy_head(self.body(x)).to(x.dtype))

    def value(self, inputs: NetworkInputs) -> Tensor:
        """Apply the critic alone: [B, 1]."""
        body = self.body if self.value_body is None else self.value_body
        if body is None or self.value_head is None:
            return self._nothing(inputs.policy)[1]
        if inputs.past is not None and self.memory_size:
            return self.remember(inputs, inputs.past)[1]
        return cast(Tensor, self.value_head(body(inputs.critic)).to(inputs.critic.dtype))

    def _nothing(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs = torch.zeros(len(x), num_outputs(self.space), device=x.device)
        return outputs, torch.zeros(len(x), 1, device=x.device)


def num_outputs(space: AgentSpace) -> int:
    """Return the number of a policy's outputs: logits, or means."""
    if isinstance(space.actions, DiscreteActions):
        return sum(space.actions.sizes)
    return space.actions.num_factors


def build_agent(
    hyper_params: HyperParameters,
    name: str,
    section: GymnasiumAgentParameters,
    space: AgentSpace,
    device: str | torch.device,
    input_specs: AgentInputSpecs | None = None,
) -> ControlAgent:
    """Build an agent with its initial weights.

    Each part's are sampled from (seed, "initial_state", 0, part, name): hidden layers with the
    section's gain, the policy's last with ``policy_gain``, the critic's with 1. Without
    ``input_specs`` both see the agent's own observations.
    """
    if input_specs is None:
        alone = NetworkInputSpec((0,), (space,))
        input_specs = AgentInputSpecs(alone, alone)
    if section.is_random:
        return ControlAgent(name, section, space)

    def init(part: str, gain: float) -> Initializer:
        generator = torch_generator(hyper_params.seed, "initial_state", 0, part, name)
        return Initializer(generator, section.use_orthogonal_initialisation, gain, device)

    gain = section.orthogonal_initialisation_gain
    log_std = None
    if isinstance(space.actions, ContinuousActions):
        shape = (space.actions.num_factors,)
        log_std = torch.full(shape, section.initial_log_std, device=device)
    body = build_body(input_specs.policy, section, init("body", gain), name)
    value_body = None
    if section.centralised_critic or not hyper_params.rl.use_shared_body:
        value_body = build_body(input_specs.critic, section, init("value_body", gain), name)
    outputs = num_outputs(space)
    return ControlAgent(
        name,
        section,
        space,
        body=body,
        policy_head=Head(
            body.num_features, outputs, init("policy_head", section.policy_gain), log_std
        ),
        value_head=Head((value_body or body).num_features, 1, init("value_head", 1.0)),
        value_body=value_body,
    )


def build_all_agents(
    hyper_params: HyperParameters,
    spaces: AgentSpaces,
    sections: Mapping[str, GymnasiumAgentParameters],
    device: str | torch.device = "cpu",
) -> dict[str, ControlAgent]:
    """Build agents; a ``shared_model_group`` has the network of its first agent."""
    input_specs = agent_input_specs(spaces, sections)
    firsts: dict[str, str] = {}
    agents: dict[str, ControlAgent] = {}
    for name, space in spaces.by_name.items():
        section = sections[name]
        group = section.shared_model_group
        first = name if group is None else firsts.setdefault(group, name)
        if first == name:
            agents[name] = build_agent(
                hyper_params, name, section, space, device, input_specs[name]
            )
            continue
        _check_alike(spaces, sections, first, name)
        agents[name] = replace(agents[first], name=name)
    return agents


def _check_alike(
    spaces: AgentSpaces,
    sections: Mapping[str, GymnasiumAgentParameters],
    first: str,
    name: str,
) -> None:
    where = f"agents.{name}.shared_model_group: got {sections[name].shared_model_group!r}"
    one, other = spaces.by_name[first], spaces.by_name[name]
    if one != other:
        raise ParameterError(
            f"{where}, with which {name!r} would have the network of {first!r}: it observes and"
            f" does {other}, expected {one}. Give one group only to agents with the same spaces."
        )
    if sections[first] != sections[name]:
        mine, theirs = sections[name].to_dict(), sections[first].to_dict()
        differ = sorted(key for key in mine if mine[key] != theirs[key])
        raise ParameterError(
            f"{where}, with which {name!r} would have the network of {first!r}, whose"
            f" {', '.join(differ)} differ; expected the same parameters throughout a group. Put"
            " them into agents._default, or take the agents apart."
        )
