"""Builder of a protocol's agents from their parameters: common heads over a scenario's body.

A scenario subclasses :class:`AgentBuilder` and defines the body. Weights are sampled from (seed,
"initial_state", 0, part, agent), so that the parts' weights are independent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from ratchet.agents.actions import ever_decides
from ratchet.agents.combined import CombinedAgents
from ratchet.agents.lr_groups import check_shared_factors
from ratchet.agents.networks.heads import (
    ConstantValueHead,
    PolicyHead,
    RandomPolicyHead,
    SoloHead,
    ValueHead,
)
from ratchet.agents.networks.layers import Initializer
from ratchet.agents.networks.registry import NETWORKS, agent_class
from ratchet.agents.parts import Agent, AgentBody, Perception
from ratchet.errors import ParameterError
from ratchet.parameters.networks import NetworkAgentParameters
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    import torch

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler

SOLO = "solo_agent"
POOLED, SYMBOLS = "pooled", "symbols"

Section = TypeVar("Section", bound=NetworkAgentParameters)


@dataclass(frozen=True)
class AgentPlan(Generic[Section]):
    """Description of an agent before it is built; its weights don't depend on the device."""

    hyper_params: HyperParameters
    handler: ProtocolHandler
    name: str
    section: Section
    device: str | torch.device = "cpu"

    @cached_property
    def decides(self) -> bool:
        """Whether the agent ever decides."""
        return ever_decides(self.handler, self.name)

    @property
    def max_rounds(self) -> int:
        """R."""
        return self.handler.max_message_rounds

    @property
    def num_seen_channels(self) -> int:
        """V, the number of channels the agent sees."""
        index = self.handler.agent_index(self.name)
        return int(self.handler.channel_visibility_mask[index].sum())

    @property
    def num_written_channels(self) -> int:
        """K, the number of channels the agent may ever write to."""
        index = self.handler.agent_index(self.name)
        return int(self.handler.can_be_active_mask[:, index].any(0).sum())

    @property
    def d_history(self) -> int:
        """R · V · P: features that the history of messages gives each symbol."""
        return self.max_rounds * self.num_seen_channels * self.hyper_params.message_size

    @property
    def d_linear(self) -> int | None:
        """Size of the linear message space, None without one."""
        if not self.hyper_params.include_linear_message_space:
            return None
        return self.hyper_params.d_linear_message_space

    @property
    def d_linear_history(self) -> int | None:
        """R · V · L: features of the history of linear messages, None without one."""
        if self.d_linear is None:
            return None
        return self.max_rounds * self.num_seen_channels * self.d_linear

    def init(self, part: str) -> Initializer:
        """Return the initializer of a part's weights."""
        return Initializer(
            torch_generator(self.hyper_params.seed, "initial_state", 0, part, self.name),
            self.section.use_orthogonal_initialisation,
            self.section.orthogonal_initialisation_gain,
            self.device,
        )


class AgentBuilder(ABC, Generic[Section]):
    """Builder of a scenario's agents; paths of custom networks start from ``base_dir``."""

    section_class: ClassVar[type[NetworkAgentParameters]]
    """The scenario's model of an agent's parameters."""

    def __init__(self, base_dir: Path | None = None) -> None:
        self.base_dir = base_dir

    @abstractmethod
    def build_body(
        self, plan: AgentPlan[Section], init: Initializer, read: Collection[str]
    ) -> AgentBody:
        """Build a body.

        ``read`` are the parts of the representation that heads read: ``"pooled"``, ``"symbols"`` or
        both. The rest may be None.
        """

    @abstractmethod
    def build_perception(self, hyper_params: HyperParameters) -> Perception:
        """Return the preparation of the scenario's data and the mask of allowed symbols."""

    def build_manual_agent(self, plan: AgentPlan[Section]) -> Agent:
        """Build the scripted agent for ``use_manual_architecture``; unsupported by default."""
        raise ParameterError(
            f"agents.{plan.name}.use_manual_architecture: got true, or a phase's partner"
            f" {plan.name}: hand_made, but the scenario {plan.hyper_params.scenario!r} has no"
            " scripted agents. Set it to false, or choose another partner for the phase."
        )

    def check_hand_made(
        self, hyper_params: HyperParameters, handler: ProtocolHandler, name: str
    ) -> None:
        """Raise ParameterError if :meth:`build_manual_agent` cannot make an agent."""
        section = self._section(hyper_params, name)
        self.build_manual_agent(AgentPlan(hyper_params, handler, name, section))

    def build_agents(
        self,
        hyper_params: HyperParameters,
        handler: ProtocolHandler,
        trainer_type: str = "rl",
        device: str | torch.device = "cpu",
    ) -> dict[str, Agent]:
        """Build the agents with their initial weights, in the protocol's order.

        For the trainer type ``solo_agent``, builds bodies and solo heads; otherwise bodies, policy
        and value heads, and also solo heads if ``pretrain_agents`` is set. The weights don't depend
        on the device.
        """
        sections = {name: self._section(hyper_params, name) for name in handler.agent_names}
        if trainer_type != SOLO:
            check_shared_factors(hyper_params.rl, sections)
        return {
            name: self._build_agent(
                AgentPlan(hyper_params, handler, name, section, device), trainer_type
            )
            for name, section in sections.items()
        }

    def build_hand_made_agents(
        self, hyper_params: HyperParameters, handler: ProtocolHandler, names: Collection[str]
    ) -> dict[str, Agent]:
        """Build scripted agents to be imitated: they sample among equally good actions.

        Raises ParameterError if an agent has no scripted version.
        """
        agents = {}
        for name in names:
            plan = AgentPlan(hyper_params, handler, name, self._section(hyper_params, name))
            agents[name] = agent = self.build_manual_agent(plan)
            if agent.policy_head is not None:
                agent.policy_head = agent.policy_head.with_ties()
        return agents

    def combine_agents(
        self, hyper_params: HyperParameters, handler: ProtocolHandler, agents: Mapping[str, Agent]
    ) -> CombinedAgents:
        """Run all agents as one actor; :meth:`CombinedAgents.bind` it to an environment."""
        return CombinedAgents(agents, handler, hyper_params, self.build_perception(hyper_params))

    def _section(self, hyper_params: HyperParameters, name: str) -> Section:
        parameters = hyper_params.agents[name]
        if not isinstance(parameters, self.section_class):
            raise ParameterError(
                f"agents.{name}: got {type(parameters).__name__}, expected"
                f" {self.section_class.__name__}. The parameters and the agents are of"
                " different scenarios."
            )
        chosen = {
            "is_random=true": parameters.is_random,
            "use_manual_architecture=true": parameters.use_manual_architecture,
            f"network={parameters.network!r}": parameters.network is not None,
        }
        set_options = [text for text, is_given in chosen.items() if is_given]
        if len(set_options) > 1:
            raise ParameterError(
                f"agents.{name}: got {' and '.join(set_options)}, expected at most one of them."
            )
        return parameters  # type: ignore[return-value] # Section is section_class

    def _build_agent(self, plan: AgentPlan[Section], trainer_type: str) -> Agent:
        section = plan.section
        if section.is_random:
            policy = RandomPolicyHead(decides=plan.decides, d_linear=plan.d_linear)
            return Agent(plan.name, section, policy_head=policy, value_head=ConstantValueHead())
        if section.use_manual_architecture:
            return self.build_manual_agent(plan)
        solo = trainer_type == SOLO or plan.hyper_params.pretrain_agents
        shared = trainer_type == SOLO or plan.hyper_params.rl.use_shared_body
        reads_pooled = shared or solo or plan.decides or plan.d_linear is not None
        read = (POOLED, SYMBOLS) if reads_pooled else (SYMBOLS,)
        agent = Agent(plan.name, section, body=self._body(plan, "body", read))
        if solo:
            agent.solo_head = SoloHead(
                section, plan.hyper_params.d_representation, plan.init("solo_head")
            )
        if trainer_type == SOLO:
            return agent
        agent.policy_head = _policy_head(plan)
        agent.value_head = _value_head(plan)
        if not shared:
            agent.value_body = self._body(plan, "value_body", (POOLED,))
        return agent

    def _body(self, plan: AgentPlan[Section], part: str, read: Collection[str]) -> AgentBody:
        """Build the custom body if set, the scenario's otherwise."""
        custom_body = agent_class(NETWORKS, plan.name, plan.section, self.base_dir)
        if custom_body is None:
            return self.build_body(plan, plan.init(part), read)
        return custom_body(plan, plan.init(part), read)


def _policy_head(plan: AgentPlan[Section]) -> PolicyHead:
    return PolicyHead(
        plan.section,
        plan.hyper_params.d_representation,
        (plan.num_written_channels, plan.hyper_params.message_size),
        plan.max_rounds,
        plan.init("policy_head"),
        decides=plan.decides,
        d_linear=plan.d_linear,
    )


def _value_head(plan: AgentPlan[Section]) -> ValueHead:
    return ValueHead(
        plan.section,
        plan.hyper_params.d_representation,
        plan.max_rounds,
        plan.init("value_head"),
        plan.handler.reward_mid_point_estimate(plan.name),
    )
