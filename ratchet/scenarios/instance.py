"""``ScenarioInstance``: the components of one experiment, built from its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.rollouts.dataset import NestedArrayDictDataset
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.pure_text.agent import TextAgent
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.tensor_environment import TensorEnvironment

DatasetT = TypeVar("DatasetT", default="TensorDictDataset")
EnvironmentT = TypeVar("EnvironmentT", default="TensorEnvironment")
AgentT = TypeVar("AgentT", default="Agent")


@dataclass
class ScenarioInstance(Generic[DatasetT, EnvironmentT, AgentT]):
    """What a trainer works with. Made by :func:`ratchet.scenarios.build_scenario_instance`.

    Its datasets, environments and agents are those of its scenario's family: without type
    arguments those of tensors, see :data:`TextScenarioInstance` for those of text.
    ``extra_test_datasets`` and ``extra_test_environments`` have the same names.
    ``combined_agents`` is bound to the training environment and has the agents' modules, not
    copies of them; agents of text aren't combined. ``shared_model_groups`` maps names to the
    models that agents of text use.
    """

    hyper_params: HyperParameters
    settings: ExperimentSettings
    protocol_handler: ProtocolHandler
    train_dataset: DatasetT
    test_dataset: DatasetT
    train_environment: EnvironmentT
    test_environment: EnvironmentT
    agents: dict[str, AgentT]
    combined_agents: ActorCritic | None = None
    extra_test_datasets: dict[str, DatasetT] = field(default_factory=dict)
    extra_test_environments: dict[str, EnvironmentT] = field(default_factory=dict)
    shared_model_groups: dict[str, Any] = field(default_factory=dict)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The agents, in the protocol's order."""
        return tuple(self.protocol_handler.agent_names)

    @property
    def datasets(self) -> dict[str, DatasetT]:
        """All datasets by name."""
        return {
            "train": self.train_dataset,
            "test": self.test_dataset,
            **self.extra_test_datasets,
        }

    @property
    def test_environments(self) -> dict[str, EnvironmentT]:
        """Test environments by the name of their dataset, ``test`` first."""
        return {"test": self.test_environment, **self.extra_test_environments}


TextScenarioInstance: TypeAlias = (
    "ScenarioInstance[NestedArrayDictDataset, PureTextEnvironment, TextAgent]"
)
AnyScenarioInstance: TypeAlias = ScenarioInstance[Any, Any, Any]
