"""``ScenarioInstance``: the components of one experiment, built from its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.environment import Environment


@dataclass
class ScenarioInstance:
    """What a trainer works with. Made by :func:`ratchet.scenarios.build_scenario_instance`.

    ``extra_test_datasets`` and ``extra_test_environments`` have the same names.
    ``combined_agents`` is bound to the training environment and has the agents' modules, not
    copies of them. ``shared_model_groups`` maps names to models that several agents use.
    """

    hyper_params: HyperParameters
    settings: ExperimentSettings
    protocol_handler: ProtocolHandler
    train_dataset: TensorDictDataset
    test_dataset: TensorDictDataset
    train_environment: Environment
    test_environment: Environment
    agents: dict[str, Agent]
    combined_agents: CombinedAgents | None = None
    extra_test_datasets: dict[str, TensorDictDataset] = field(default_factory=dict)
    extra_test_environments: dict[str, Environment] = field(default_factory=dict)
    shared_model_groups: dict[str, Any] = field(default_factory=dict)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The agents, in the protocol's order."""
        return tuple(self.protocol_handler.agent_names)

    @property
    def datasets(self) -> dict[str, TensorDictDataset]:
        """All datasets by name."""
        return {
            "train": self.train_dataset,
            "test": self.test_dataset,
            **self.extra_test_datasets,
        }

    @property
    def test_environments(self) -> dict[str, Environment]:
        """Test environments by the name of their dataset, ``test`` first."""
        return {"test": self.test_environment, **self.extra_test_environments}
