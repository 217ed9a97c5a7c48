"""The base of all trainers: it takes what an experiment is made of, and trains.

Knows no tensors, so that trainers of chat models stand on it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ratchet.errors import CheckPointNotFoundError, ParameterError, RenamedAttributes
from ratchet.tracking.trainer_files import StateFinder, add_artifact, find_checkpoint
from trainers.checkpointing import CheckpointingTrainer, MetricRecord
from trainers.custom_state import is_custom
from trainers.progress import declared_iterations

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.base import AnyScenarioInstance

__all__ = ["CheckPointNotFoundError", "MetricRecord", "Trainer"]


class NamedTrainer(ABC):
    """What an experiment may name as its trainer: a trainer, or what one is made around."""

    @classmethod
    @abstractmethod
    def trainer_class(cls) -> type[Trainer]:
        """Return the class whose training is run."""

    @classmethod
    def needed_devices(cls, hyper_params: HyperParameters) -> int:
        """Return how many accelerators it trains on, where it is to train on accelerators."""
        return 1


class Trainer(RenamedAttributes, CheckpointingTrainer, NamedTrainer):
    """Base of all trainers. Subclasses write :meth:`train`.

    ``hyper_params`` hold all that decides the result, ``settings`` all that must not change it.
    Attributes that a subclass assigns to ``self`` are stored with the state, and restored when a
    run is resumed; see :mod:`trainers.custom_state`.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "use_critic": "an agent that has one has a value_head, scenario_instance.agents[NAME]",
        "use_single_body": "it is hyper_params.rl.use_shared_body",
    }

    trainer_type: ClassVar[str] = "rl"
    """Which parts the agents are built with: ``"rl"``, ``"solo_agent"`` or one's own."""

    plays_text: ClassVar[bool | None] = None
    """Whether its agents must be chat models (True), or must not (False); None: either."""

    learns_tokens: ClassVar[bool] = False
    """Whether its agents are language models that learn from their tokens."""

    acts_alone: ClassVar[bool] = False
    """Whether it makes an agent of its own, which acts alone in an environment."""

    instead_of_callbacks: ClassVar[str] = (
        "calls none: its training is its own. Leave callbacks out, or build the trainer on"
        " TensorDictRlTrainer or PureTextRlTrainer, whose loops call them."
    )
    """What is said to whoever gives callbacks to a trainer that has none."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        scenario_instance: AnyScenarioInstance,
        settings: ExperimentSettings,
    ) -> None:
        self.hyper_params = hyper_params
        self.scenario_instance = scenario_instance
        self.settings = settings
        self.history: list[MetricRecord] = []
        self.state_finder: StateFinder = partial(find_checkpoint, settings.home)
        """Finds states of earlier runs. By itself a trainer knows checkpoint folders only; whoever
        runs it knows run folders and the store too."""
        self.checkpoint_name = settings.run_id
        self._initialise_state()

    @classmethod
    def trainer_class(cls) -> type[Trainer]:
        """Return the class itself."""
        return cls

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse parameters with which this trainer could not train; none by default.

        Asked before anything is built; paths of a user's own protocol start from ``base_dir``.
        Raises ParameterError with the reason.
        """

    @classmethod
    def needed_packages(cls, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the optional packages that this trainer needs; none by default."""
        return ()

    @classmethod
    def is_rebuilt_between_stages(cls, hyper_params: HyperParameters) -> bool:
        """Return whether each stage builds a new trainer; so for classes outside Ratchet."""
        return is_custom(cls)

    @classmethod
    def loads_agents(cls) -> bool:
        """Return whether its agents can begin with the weights of an earlier run's."""
        return False

    @classmethod
    def calls_callbacks(cls) -> bool:
        """Return whether callbacks are told of its training."""
        return False

    @abstractmethod
    def train(self) -> None:
        """Train the agents: seed, run the training loop, run the test loop, save."""

    @classmethod
    def has_own_test(cls) -> bool:
        """Return whether there is a ``_run_test_loop`` by which saved states are tested again."""
        return callable(getattr(cls, "_run_test_loop", None))

    def run_own_test(self) -> None:
        """Run ``_run_test_loop``, which logs what it finds."""
        self._run_test_loop()  # type: ignore[attr-defined] # asked only if has_own_test

    @property
    def protocol_handler(self) -> ProtocolHandler:
        """The interaction protocol that is played."""
        return self.scenario_instance.protocol_handler

    @property
    def agent_names(self) -> list[str]:
        """The agents' names in the protocol's order."""
        return list(self.protocol_handler.agent_names)

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return len(self.agent_names)

    @property
    def max_message_rounds(self) -> int:
        """The largest number of rounds of an episode."""
        return int(self.protocol_handler.max_message_rounds)

    def get_total_num_iterations(self) -> int:
        """Return the sum of the iterations declared with :func:`trainers.attach_progress_bar`."""
        return declared_iterations(self)

    def log_stats(self, stats: Mapping[str, float], *, iteration: int, stage: str) -> None:
        """Record the metrics of one iteration in :attr:`history`.

        Whoever runs the trainer takes them from there to where they are kept.
        """
        values = {name: float(value) for name, value in stats.items()}
        self.history.append(MetricRecord(stage, iteration, values))

    def _add_file_to_artifact(
        self, artifact_name: str, artifact_type: str, file_path: Path
    ) -> Path:
        """Keep a copy of a file with the run, in its folder and in MLflow; return where it lies.

        Further files of the artifact are added to it; one of the same name is replaced. Raises
        ParameterError if the run has no id, or the file is not there.
        """
        if self.settings.run_id is None:
            raise ParameterError(
                "settings.run_id: got None, but a file is kept under the run's id. Set run_id in"
                " the settings."
            )
        folder = Path(self.settings.runs) / self.settings.run_id
        return add_artifact(folder, artifact_name, artifact_type, Path(file_path))

    _add_file_to_wandb_artifact = _add_file_to_artifact
    """The name that trainers written for Weights & Biases call; the same here."""
