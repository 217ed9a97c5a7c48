"""What scenarios have in common whose agents are networks that exchange messages about datapoints.

A subclass names its environment and the builder of its agents, and makes the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.scenarios.tensor_scenario import TensorScenario

if TYPE_CHECKING:
    import torch

    from ratchet.agents.building import AgentBuilder
    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.environment import Environment


class MessageScenario(TensorScenario):
    """Base of scenarios with an :class:`Environment` and agents of bodies and heads."""

    environment_class: ClassVar[type[Environment]]
    agent_builder: ClassVar[type[AgentBuilder[Any]]]

    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> Environment:
        """Make the environment of a dataset."""
        return self.environment_class(
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
        builder = self.agent_builder()
        return builder.build_agents(hyper_params, protocol_handler, trainer_type, device)

    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, Agent],
    ) -> CombinedAgents:
        """Make the module that runs all agents as one actor."""
        return self.agent_builder().combine_agents(hyper_params, protocol_handler, agents)
