"""What a scenario on tensors must offer: data, a batched environment, agents that are networks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from ratchet.scenarios.base import Scenario
from ratchet.scenarios.instance import AgentT, ScenarioInstance

if TYPE_CHECKING:
    import torch

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.tensor_environment import TensorEnvironment


class TensorScenario(Scenario, Generic[AgentT]):
    """Base of scenarios whose agents are networks, of the scenario's own class."""

    @abstractmethod
    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Make the datasets: ``train``, ``test`` and extra test sets by name."""

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
        """Make the environment of a dataset."""

    @abstractmethod
    def build_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        trainer_type: str,
        device: str | torch.device = "cpu",
    ) -> dict[str, AgentT]:
        """Make the agents with their initial weights, by name in the protocol's order.

        The trainer type, ``"rl"``, ``"solo_agent"`` or a trainer's own, decides which heads there
        are. Weights don't depend on the device.
        """

    @abstractmethod
    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, AgentT],
    ) -> ActorCritic:
        """Make the module that runs all agents as one actor."""

    def build_instance(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        datasets: Mapping[str, TensorDictDataset],
        trainer_type: str,
    ) -> ScenarioInstance[TensorDictDataset, TensorEnvironment, AgentT]:
        """Build environments and agents, and put all components together."""
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
