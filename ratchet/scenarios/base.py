"""Scenarios and their instances: base classes of everything that a game consists of."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias

from typing_extensions import TypeVar

from ratchet.errors import RenamedAttributes
from ratchet.parameters.agents import AgentParameters

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.agents.parts import Agent
    from ratchet.language_models.auxiliary_calls import AuxiliaryModel, ModelCalls
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
    """Components of an experiment, from :func:`ratchet.scenarios.build_scenario_instance`.

    The types of datasets, environments and agents are those of the scenario's family: tensors
    without type arguments; text scenarios have ``TextScenarioInstance``. ``datasets`` and
    ``environments`` have the same names: ``train``, ``test`` and those of extra test sets.
    ``combined_agents`` is bound to the training environment and contains the agents' modules, not
    copies; text agents aren't combined. ``shared_model_groups`` maps names to the models of text
    agents.
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
        """The training dataset."""
        return self.datasets["train"]

    @property
    def test_dataset(self) -> DatasetT:
        """The test dataset."""
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


VALIDATION = "validation"
"""The name of the validation split."""
AnyScenarioInstance: TypeAlias = ScenarioInstance[Any, Any, Any]


class Dataset(Protocol):
    """Operations of stages on a scenario's data of any kind."""

    def __len__(self) -> int: ...

    @property
    def hash(self) -> str:
        """SHA-256 of the content, the same in every process."""
        ...

    def save(self, directory: Path, /) -> None:
        """Write it into a folder."""
        ...


class Scenario(ABC):
    """Builds the components of an experiment on one kind of data.

    Base of both families: see :class:`ratchet.scenarios.tensor_scenario.TensorScenario` and
    :class:`ratchet.scenarios.pure_text.base.TextScenario`. Paths of the user's files start from
    ``base_dir``, set by :func:`ratchet.scenarios.registry.build_scenario`; the working folder if
    None. ``label_texts`` describe the labels 0 and 1 of a datapoint: transcripts show them next to
    decisions.
    """

    label_texts: ClassVar[tuple[str, str]] = ("to reject is right", "to accept is right")
    base_dir: Path | None = None

    @classmethod
    def agent_parameters(cls) -> type[AgentParameters]:
        """Return the class of an agent's parameters, for custom scenarios.

        Built-in ones use ``register_agent_parameters``, which does not import the scenario.
        """
        return AgentParameters

    def needed_packages(self, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the optional packages that these parameters need; none by default.

        Called before components are built, to report missing packages early.
        """
        return ()

    @abstractmethod
    def build_datasets(self, hyper_params: HyperParameters) -> Mapping[str, Dataset]:
        """Create the datasets: ``train``, ``test`` and extra test sets by name.

        A scenario whose validation split is more than a random part of the training data creates
        ``validation`` too; see :func:`ratchet.scenarios.validation_split.split_datasets`.
        """

    def make_datasets(
        self, hyper_params: HyperParameters, calls: ModelCalls | None = None
    ) -> Mapping[str, Dataset]:
        """Create datasets that chat models, called through ``calls``, partly write.

        As :meth:`build_datasets` by default. A scenario whose data are written so names the models
        in :meth:`asked_for_data`.
        """
        return self.build_datasets(hyper_params)

    def asked_for_data(self, hyper_params: HyperParameters) -> tuple[AuxiliaryModel, ...]:
        """Return the chat models that write part of the data, with their numbers of calls.

        None by default. Plans include these calls, and their services are started.
        """
        return ()

    def data_prompts(self, hyper_params: HyperParameters) -> Mapping[str, Path]:
        """Return the non-code files with prompts for those models, by name.

        None by default. Their content enters the key like the code that creates the data.
        """
        return {}

    group_field: ClassVar[str | None] = None
    """The field whose equal values stay together when the validation split is separated."""
    untested: ClassVar[frozenset[str]] = frozenset({"train"})
    """The datasets that are not final test sets."""

    def test_sets(self, hyper_params: HyperParameters) -> list[str]:
        """Return the names of the test sets that :meth:`build_datasets` will create.

        Only ``test`` by default; scenarios with others must list them for plans.
        """
        return ["test"]

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the functions and classes whose code decides the datasets.

        All of the scenario by default; narrower, so that datasets outlive an edit of the agents.
        """
        return (type(self),)

    def own_data_code(self, hyper_params: HyperParameters) -> tuple[Callable[..., object], ...]:
        """Return further classes whose code decides these datasets, the user's among them.

        None by default.
        """
        return ()

    def played_files(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> Mapping[str, Path]:
        """Return the non-code files that affect agents' behaviour, by readable name.

        None by default. They are stored with the run; names do not contain paths.
        """
        return {}

    def file_digests(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> Mapping[str, str]:
        """Return the SHA-256 of each of :meth:`played_files`.

        They enter keys like the digests of modules: rollouts of edited files are recomputed.
        """
        return digests(self.played_files(hyper_params, protocol_handler))

    def agent_code(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> tuple[Callable[..., object], ...]:
        """Return the custom classes of which agents consist; none by default.

        Their sources enter keys like the scenario's.
        """
        return ()

    def data_files(self, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the hashes of the datasets' files, by name; none by default.

        They replace the files' paths in the data's key.
        """
        return {}

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Replace paths in a stage's parameters, plain data, by the content of the files.

        No path is replaced by default. The data's key uses :meth:`data_files` instead.
        """
        return parameters

    def check_hand_made(  # noqa: B027 -- overridden by scenarios that can check this early
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler, name: str
    ) -> None:
        """Refuse unsupported scripted agents; by default, building them raises.

        Raises ParameterError with the reason.
        """

    @abstractmethod
    def load_dataset(self, directory: Path) -> Dataset:
        """Read a dataset that was saved in a folder.

        Raises
        ------
        DataError
            If a file is missing or damaged.
        """

    @abstractmethod
    def build_instance(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        datasets: Mapping[str, Any],
        trainer_type: str,
    ) -> AnyScenarioInstance:
        """Build the instance from its components; ``datasets`` are those of :meth:`build_datasets`.

        The trainer type sets the purpose of the agents: ``"rl"``, ``"solo_agent"``, ``"pure_text"``
        or a custom one.
        """


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by their names."""
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
