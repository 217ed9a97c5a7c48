"""Builds the agents of the graph-isomorphism scenario from their parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ratchet.agents.building import AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer
from ratchet.agents.parts import Agent
from ratchet.scenarios.graph_isomorphism import tapes  # noqa: F401 -- registers recorders
from ratchet.scenarios.graph_isomorphism.body import (
    GraphIsomorphismBody,
    GraphPerception,
    exchange_lengths,
)
from ratchet.scenarios.graph_isomorphism.manual import build_manual_agent
from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


class GraphAgentBuilder(AgentBuilder[GraphIsomorphismAgentParameters]):
    """Builder of agents with the common heads over bodies that see two graphs."""

    section_class = GraphIsomorphismAgentParameters

    def build_body(
        self,
        plan: AgentPlan[GraphIsomorphismAgentParameters],
        init: Initializer,
        read: Collection[str],
    ) -> GraphIsomorphismBody:
        """Create a body of GIN, pooling and transformer."""
        return GraphIsomorphismBody(
            plan.section,
            plan.d_history,
            plan.hyper_params.d_representation,
            init,
            plan.d_linear_history,
            read,
            exchange_lengths(plan.handler) if plan.section.tie_exchanges else None,
        )

    def build_perception(self, hyper_params: HyperParameters) -> GraphPerception:
        """Return the preparation of graph pairs."""
        return GraphPerception()

    def build_manual_agent(self, plan: AgentPlan[GraphIsomorphismAgentParameters]) -> Agent:
        """Build the scripted prover or verifier."""
        return build_manual_agent(plan.hyper_params, plan.handler, plan.section, plan.name)
