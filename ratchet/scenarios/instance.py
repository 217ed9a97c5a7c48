"""``ScenarioInstance``: the components of one experiment, built from its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

from typing_extensions import TypeVar

from ratchet.errors import RenamedAttributes

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.tensor_environment import TensorEnvironment

DatasetT = TypeVar("DatasetT", default="TensorDictDataset")
EnvironmentT = TypeVar("EnvironmentT", default="TensorEnvironment")
AgentT = TypeVar("AgentT", default="Agent")


_ONE_ACTOR = (
    "all agents are one actor, scenario_instance.combined_agents (policy and value: its act, score"
    " and values); one agent's parts are scenario_instance.agents[NAME].body, .policy_head …"
)


@dataclass
class ScenarioInstance(RenamedAttributes, Generic[DatasetT, EnvironmentT, AgentT]):
    """What a trainer works with. Made by :func:`ratchet.scenarios.build_scenario_instance`.

    Its datasets, environments and agents are those of its scenario's family: without type
    arguments those of tensors, see ``TextScenarioInstance`` for those of text. ``datasets`` and
    ``environments`` have the same names: ``train``, ``test`` and those of extra test sets.
    ``combined_agents`` is bound to the training environment and has the agents' modules, not
    copies of them; agents of text aren't combined. ``shared_model_groups`` maps names to the
    models that agents of text use.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "combined_body": _ONE_ACTOR,
        "combined_policy_body": _ONE_ACTOR,
        "combined_policy_head": _ONE_ACTOR,
        "combined_value_body": _ONE_ACTOR,
        "combined_value_head": _ONE_ACTOR,
        "combined_whole": (
            "in text scenarios the chat models are scenario_instance.agents[NAME].whole; in all"
            f" others {_ONE_ACTOR}"
        ),
        "message_regressor": "regression is a callback; see message_regression.enabled",
    }

    hyper_params: HyperParameters
    settings: ExperimentSettings
    protocol_handler: ProtocolHandler
    datasets: dict[str, DatasetT]
    environments: dict[str, EnvironmentT]
    agents: dict[str, AgentT]
    combined_agents: ActorCritic | None = None
    shared_model_groups: dict[str, Any] = field(default_factory=dict)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The agents, in the protocol's order."""
        return tuple(self.protocol_handler.agent_names)

    @property
    def train_dataset(self) -> DatasetT:
        """What is learned from."""
        return self.datasets["train"]

    @property
    def test_dataset(self) -> DatasetT:
        """What is tested on."""
        return self.datasets["test"]

    @property
    def train_environment(self) -> EnvironmentT:
        """The environment of the training data."""
        return self.environments["train"]

    @property
    def test_environment(self) -> EnvironmentT:
        """The environment of the test data."""
        return self.environments["test"]

    @property
    def test_environments(self) -> dict[str, EnvironmentT]:
        """Test environments by the name of their dataset, ``test`` first."""
        extra = sorted(self.environments.keys() - {"train", "test"})
        return {name: self.environments[name] for name in ("test", *extra)}


AnyScenarioInstance: TypeAlias = ScenarioInstance[Any, Any, Any]
