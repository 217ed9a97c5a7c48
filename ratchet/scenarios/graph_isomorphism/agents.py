"""Builds the agents of the graph-isomorphism scenario from their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratchet.agents.combined import CombinedAgents
from ratchet.agents.layers import Initializer
from ratchet.agents.lr_groups import check_shared_factors
from ratchet.agents.parts import Agent
from ratchet.agents.random import ConstantValueHead, RandomPolicyHead
from ratchet.agents.roles import ever_decides
from ratchet.errors import ParameterError
from ratchet.scenarios.graph_isomorphism.body import GraphIsomorphismBody, GraphPerception
from ratchet.scenarios.graph_isomorphism.heads import (
    GraphPolicyHead,
    GraphSoloHead,
    GraphValueHead,
)
from ratchet.scenarios.graph_isomorphism.manual import build_manual_agent
from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    import torch

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler

SOLO = "solo_agent"


def build_agents(
    hyper_params: HyperParameters,
    protocol_handler: ProtocolHandler,
    trainer_type: str = "rl",
    device: str | torch.device = "cpu",
) -> dict[str, Agent]:
    """Build the protocol's agents with their initial weights.

    Parameters
    ----------
    hyper_params, protocol_handler
        The experiment's.
    trainer_type
        ``solo_agent`` builds bodies and solo heads; any other bodies, policy and value heads, and
        solo heads besides if ``pretrain_agents`` is set.
    device
        Where the parameters live; the weights don't depend on it.

    Returns
    -------
    dict[str, Agent]
        In the protocol's order. Weights are drawn from (seed, "initial_state", 0, part, agent).

    Raises
    ------
    ParameterError
        If factors of actor and critic differ in a shared body, or an agent cannot be built so.
    """
    sections = {name: _section(hyper_params, name) for name in protocol_handler.agent_names}
    if trainer_type != SOLO:
        check_shared_factors(hyper_params.rl, sections)
    return {
        name: _build_agent(
            hyper_params, protocol_handler, sections[name], name, trainer_type, device
        )
        for name in sections
    }


def combine_agents(
    hyper_params: HyperParameters,
    protocol_handler: ProtocolHandler,
    agents: Mapping[str, Agent],
) -> CombinedAgents:
    """Run all agents as one actor; :meth:`CombinedAgents.bind` it to an environment."""
    return CombinedAgents(agents, protocol_handler, hyper_params, GraphPerception())


def _section(hyper_params: HyperParameters, name: str) -> GraphIsomorphismAgentParameters:
    parameters = hyper_params.agents[name]
    if not isinstance(parameters, GraphIsomorphismAgentParameters):
        raise ParameterError(
            f"agents.{name}: got {type(parameters).__name__}, expected"
            " GraphIsomorphismAgentParameters. Set scenario: graph_isomorphism."
        )
    if parameters.is_random and parameters.use_manual_architecture:
        raise ParameterError(
            f"agents.{name}: got is_random=true and use_manual_architecture=true, expected at most"
            " one of them."
        )
    return parameters


def _build_agent(
    hyper_params: HyperParameters,
    handler: ProtocolHandler,
    section: GraphIsomorphismAgentParameters,
    name: str,
    trainer_type: str,
    device: str | torch.device,
) -> Agent:
    if section.is_random:
        d_linear = _linear_space(hyper_params)
        policy = RandomPolicyHead(decides=ever_decides(handler, name), d_linear=d_linear)
        return Agent(name, section, policy_head=policy, value_head=ConstantValueHead())
    if section.use_manual_architecture:
        return build_manual_agent(hyper_params, handler, section, name)
    builder = _PartBuilder(hyper_params, handler, section, name, device)
    solo = trainer_type == SOLO or hyper_params.pretrain_agents
    shared = trainer_type == SOLO or hyper_params.rl.use_shared_body
    reads_whole = shared or solo or builder.decides or builder.d_linear is not None
    body = builder.body("body", ("whole", "symbols") if reads_whole else ("symbols",))
    agent = Agent(name, section, body=body)
    if solo:
        agent.solo_head = builder.solo_head()
    if trainer_type == SOLO:
        return agent
    agent.policy_head = builder.policy_head()
    agent.value_head = builder.value_head()
    if not shared:
        agent.value_body = builder.body("value_body", ("whole",))
    return agent


def _linear_space(hyper_params: HyperParameters) -> int | None:
    if not hyper_params.include_linear_message_space:
        return None
    return hyper_params.d_linear_message_space


class _PartBuilder:
    """Makes one agent's parts, each from a generator of its own."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        handler: ProtocolHandler,
        section: GraphIsomorphismAgentParameters,
        name: str,
        device: str | torch.device,
    ) -> None:
        self.hyper_params = hyper_params
        self.handler = handler
        self.section = section
        self.name = name
        self.device = device
        self.index = list(handler.agent_names).index(name)
        self.decides = ever_decides(handler, name)
        self.d_linear = _linear_space(hyper_params)

    def init(self, part: str) -> Initializer:
        seed = self.hyper_params.seed
        return Initializer(
            torch_generator(seed, "initial_state", 0, part, self.name),
            self.section.use_orthogonal_initialisation,
            self.section.orthogonal_initialisation_gain,
            self.device,
        )

    def body(self, part: str, read: tuple[str, ...]) -> GraphIsomorphismBody:
        rounds = self.handler.max_message_rounds
        channels = int(self.handler.channel_visibility_mask[self.index].sum())
        return GraphIsomorphismBody(
            self.section,
            rounds * channels * self.hyper_params.message_size,
            self.hyper_params.d_representation,
            self.init(part),
            None if self.d_linear is None else rounds * channels * self.d_linear,
            read,
        )

    def policy_head(self) -> GraphPolicyHead:
        writes = int(self.handler.can_be_active_mask[:, self.index].any(0).sum())
        return GraphPolicyHead(
            self.section,
            self.hyper_params.d_representation,
            (writes, self.hyper_params.message_size),
            self.handler.max_message_rounds,
            self.init("policy_head"),
            decides=self.decides,
            d_linear=self.d_linear,
        )

    def value_head(self) -> GraphValueHead:
        return GraphValueHead(
            self.section,
            self.hyper_params.d_representation,
            self.handler.max_message_rounds,
            self.init("value_head"),
            self.handler.reward_mid_point_estimate(self.name),
        )

    def solo_head(self) -> GraphSoloHead:
        return GraphSoloHead(
            self.section, self.hyper_params.d_representation, self.init("solo_head")
        )
