"""Base classes of scenarios with networks: any tensor environment, and games with messages.

A subclass names its environment and the builder of its agents, and creates the data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from ratchet.agents.networks.registry import NETWORKS, agent_class
from ratchet.plugins import class_name
from ratchet.scenarios.base import AgentT, Scenario, ScenarioInstance

if TYPE_CHECKING:
    import torch

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.agents.building import AgentBuilder
    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.registry import Registry
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.environment import Environment
    from ratchet.scenarios.tensor_environment import TensorEnvironment


class TensorScenario(Scenario, Generic[AgentT]):
    """Base of scenarios whose agents are networks, of a class that the scenario defines."""

    agent_registries: ClassVar[tuple[Registry[Any], ...]] = ()
    """Registries of classes that agents name, each in the parameter with the registry's name."""

    @abstractmethod
    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Create the datasets: ``train``, ``test`` and extra test sets by name."""

    def load_dataset(self, directory: Path) -> TensorDictDataset:
        """Read a dataset that was saved in a folder."""
        from ratchet.scenarios.dataset import TensorDictDataset

        return TensorDictDataset.load(directory)

    @abstractmethod
    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> TensorEnvironment:
        """Create the environment of a dataset."""

    @abstractmethod
    def build_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        trainer_type: str,
        device: str | torch.device = "cpu",
    ) -> dict[str, AgentT]:
        """Create the agents with their initial weights, by name in the protocol's order.

        The trainer type, ``"rl"``, ``"solo_agent"`` or a custom one, determines the heads. Weights
        don't depend on the device.
        """

    @abstractmethod
    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, AgentT],
    ) -> ActorCritic:
        """Create the module that runs all agents as one actor."""

    def build_instance(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        datasets: Mapping[str, TensorDictDataset],
        trainer_type: str,
    ) -> ScenarioInstance[TensorDictDataset, TensorEnvironment, AgentT]:
        """Build environments and agents, and combine all components."""
        device = settings.device
        there = {
            name: dataset.to(device, pin_memory=settings.pin_memory)
            for name, dataset in datasets.items()
        }
        environments = {
            name: self.build_environment(
                hyper_params, dataset, protocol_handler, train=name == "train", device=device
            )
            for name, dataset in there.items()
        }
        agents = self.build_agents(hyper_params, protocol_handler, trainer_type, device)
        combined = self.combine_agents(hyper_params, protocol_handler, agents).to(device)
        combined.bind(environments["train"])
        return ScenarioInstance(
            hyper_params=hyper_params,
            settings=settings,
            protocol_handler=protocol_handler,
            datasets=dict(datasets),
            environments=environments,
            agents=agents,
            combined_agents=combined,
        )

    def agent_code(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> tuple[type, ...]:
        """Return the classes that agents name, such as custom networks."""
        classes = (
            agent_class(registry, name, hyper_params.agents[name], self.base_dir)
            for registry in self.agent_registries
            for name in protocol_handler.agent_names
        )
        return tuple(each for each in classes if each is not None)

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Remove the paths of classes that agents name: their sources are in fingerprints."""
        kinds = {registry.kind for registry in self.agent_registries}
        agents = {
            name: agent | {kind: class_name(agent[kind]) for kind in kinds if agent.get(kind)}
            for name, agent in parameters.get("agents", {}).items()
        }
        return {**parameters, "agents": agents} if agents else parameters


class MessageScenario(TensorScenario):
    """Base of scenarios with an :class:`Environment` and agents of bodies and heads."""

    environment_class: ClassVar[type[Environment]]
    agent_builder: ClassVar[type[AgentBuilder[Any]]]
    agent_registries = (NETWORKS,)

    @classmethod
    def agent_parameters(cls) -> type[AgentParameters]:
        """Return the class of the builder's parameters."""
        return cls.agent_builder.section_class

    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> Environment:
        """Create the environment of a dataset."""
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
        """Create the agents with their initial weights."""
        builder = self.agent_builder(self.base_dir)
        return builder.build_agents(hyper_params, protocol_handler, trainer_type, device)

    def check_hand_made(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler, name: str
    ) -> None:
        """Refuse an unsupported scripted agent by trying to build it, which is cheap."""
        self.agent_builder(self.base_dir).check_hand_made(hyper_params, protocol_handler, name)

    def build_hand_made_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        names: Collection[str],
    ) -> dict[str, Agent]:
        """Build the scripted agents of some names, for imitation; ParameterError without any."""
        builder = self.agent_builder(self.base_dir)
        return builder.build_hand_made_agents(hyper_params, protocol_handler, names)

    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, Agent],
    ) -> CombinedAgents:
        """Create the module that runs all agents as one actor."""
        return self.agent_builder().combine_agents(hyper_params, protocol_handler, agents)
