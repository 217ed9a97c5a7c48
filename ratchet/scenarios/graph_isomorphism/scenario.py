"""Graph isomorphism: provers convince a verifier whether two graphs are isomorphic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from ratchet.agents.building import AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer
from ratchet.agents.parts import Agent
from ratchet.scenarios.environment import Environment
from ratchet.scenarios.graph_isomorphism.body import (
    GraphIsomorphismBody,
    GraphPerception,
    exchange_lengths,
)
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets
from ratchet.scenarios.graph_isomorphism.manual import build_manual_agent
from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters
from ratchet.scenarios.registry import register_scenario
from ratchet.scenarios.tensor_scenario import MessageScenario

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.transcript_content import Transcript
    from ratchet.scenarios.dataset import TensorDictDataset


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


class GraphIsomorphismEnvironment(Environment):
    """Agents talk about two graphs by naming nodes.

    Symbols 0 … n-1 are the nodes of the first graph, n … 2n-1 those of the second, with n the
    largest size. Which nodes are absent is in ``node_mask``, and heads mask them.
    """

    data_keys: ClassVar[tuple[str, ...]] = ("adjacency", "node_mask")

    @property
    def num_symbols(self) -> int:
        """2n."""
        return 2 * int(self.dataset["adjacency"].shape[-1])

    def transcripts(self, rollouts: TensorDictBase) -> list[Transcript]:
        """Return transcripts of complete episodes of rollouts ``[E, T]``, with graph drawings."""
        module = import_module("ratchet.scenarios.graph_isomorphism.transcripts")
        written: list[Transcript] = module.graph_transcripts(
            rollouts, self.dataset, self.protocol_handler
        )
        return written


@register_scenario("graph_isomorphism")
class GraphIsomorphismScenario(MessageScenario):
    """Agents find out whether two graphs are the same up to relabelling."""

    environment_class = GraphIsomorphismEnvironment
    agent_builder = GraphAgentBuilder

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Create ``train``, ``test`` and the extra test sets."""
        return build_graph_datasets(hyper_params)

    def test_sets(self, hyper_params: HyperParameters) -> list[str]:
        """Return ``test`` and the extra test sets."""
        return ["test", *hyper_params.graph_isomorphism.extra_test_sets]

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the generator's code only."""
        return (build_graph_datasets,)
