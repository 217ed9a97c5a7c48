"""The graph-isomorphism scenario: data, environment and agents together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ratchet.scenarios.graph_isomorphism.agents import build_agents, combine_agents
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets
from ratchet.scenarios.graph_isomorphism.environment import GraphIsomorphismEnvironment
from ratchet.scenarios.registry import register_scenario
from ratchet.scenarios.tensor_scenario import TensorScenario

if TYPE_CHECKING:
    import torch

    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset


@register_scenario("graph_isomorphism")
class GraphIsomorphismScenario(TensorScenario):
    """Agents find out whether two graphs are the same up to relabelling."""

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Make ``train``, ``test`` and the extra test sets."""
        return build_graph_datasets(hyper_params)

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Give the generator's code only."""
        return (build_graph_datasets,)

    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> GraphIsomorphismEnvironment:
        """Make the environment of a dataset."""
        return GraphIsomorphismEnvironment(
            hyper_params, dataset, protocol_handler, train=train, device=device
        )

    def build_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        trainer_type: str,
        device: str | torch.device = "cpu",
    ) -> dict[str, Agent]:
        """Make the agents with their initial weights."""
        return build_agents(hyper_params, protocol_handler, trainer_type, device)

    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, Agent],
    ) -> CombinedAgents:
        """Make the module that runs all agents as one actor."""
        return combine_agents(hyper_params, protocol_handler, dict(agents))
