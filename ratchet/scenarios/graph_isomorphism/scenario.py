"""The graph-isomorphism scenario: data, environment and agents together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ratchet.scenarios.graph_isomorphism.agents import GraphAgentBuilder
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets
from ratchet.scenarios.graph_isomorphism.environment import GraphIsomorphismEnvironment
from ratchet.scenarios.message_scenario import MessageScenario
from ratchet.scenarios.registry import register_scenario

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.dataset import TensorDictDataset


@register_scenario("graph_isomorphism")
class GraphIsomorphismScenario(MessageScenario):
    """Agents find out whether two graphs are the same up to relabelling."""

    environment_class = GraphIsomorphismEnvironment
    agent_builder = GraphAgentBuilder

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Make ``train``, ``test`` and the extra test sets."""
        return build_graph_datasets(hyper_params)

    def test_sets(self, hyper_params: HyperParameters) -> list[str]:
        """Return ``test`` and the extra test sets."""
        return ["test", *hyper_params.graph_isomorphism.extra_test_sets]

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the generator's code only."""
        return (build_graph_datasets,)
