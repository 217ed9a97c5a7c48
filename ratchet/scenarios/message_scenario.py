"""What scenarios have in common whose agents are networks that exchange messages about datapoints.

A subclass names its environment and the builder of its agents, and makes the data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.agents.networks.registry import network_class
from ratchet.plugins import class_name
from ratchet.scenarios.tensor_scenario import TensorScenario

if TYPE_CHECKING:
    import torch

    from ratchet.agents.building import AgentBuilder
    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.environment import Environment


class MessageScenario(TensorScenario):
    """Base of scenarios with an :class:`Environment` and agents of bodies and heads."""

    environment_class: ClassVar[type[Environment]]
    agent_builder: ClassVar[type[AgentBuilder[Any]]]

    @classmethod
    def agent_parameters(cls) -> type[AgentParameters]:
        """Return the model that the builder reads."""
        return cls.agent_builder.section_class

    def agent_code(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> tuple[type, ...]:
        """Return the networks that agents have in place of the scenario's."""
        found = [
            network_class(name, hyper_params.agents[name], self.base_dir)
            for name in protocol_handler.agent_names
        ]
        return tuple(network for network in found if network is not None)

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Leave out where networks lie: their sources are in the code's fingerprint."""
        agents = {
            name: agent | ({"network": class_name(network)} if network else {})
            for name, agent in parameters.get("agents", {}).items()
            for network in [agent.get("network")]
        }
        return {**parameters, "agents": agents} if agents else parameters

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
        builder = self.agent_builder(self.base_dir)
        return builder.build_agents(hyper_params, protocol_handler, trainer_type, device)

    def check_hand_made(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler, name: str
    ) -> None:
        """Refuse a hand-made agent by the attempt to make it, which costs nothing."""
        self.agent_builder(self.base_dir).check_hand_made(hyper_params, protocol_handler, name)

    def build_hand_made_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        names: Collection[str],
    ) -> dict[str, Agent]:
        """Make the hand-made agents of some names, to be imitated; ParameterError without any."""
        builder = self.agent_builder(self.base_dir)
        return builder.build_hand_made_agents(hyper_params, protocol_handler, names)

    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, Agent],
    ) -> CombinedAgents:
        """Make the module that runs all agents as one actor."""
        return self.agent_builder().combine_agents(hyper_params, protocol_handler, agents)
