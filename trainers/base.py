"""Base class of all trainers.

Imports no tensor library, so that trainers of chat models can use it too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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


class Trainer(RenamedAttributes, CheckpointingTrainer):
    """Base of all trainers. Subclasses implement :meth:`train`.

    ``hyper_params`` contains every parameter that affects results, ``settings`` those that must
    not. Attributes that a subclass assigns to ``self`` are stored with the state, and restored when
    a run is resumed; see :mod:`trainers.custom_state`.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "use_critic": "an agent that has one has a value_head, scenario_instance.agents[NAME]",
        "use_single_body": "it is hyper_params.rl.use_shared_body",
    }

    trainer_type: ClassVar[str] = "rl"
    """Determines the parts of the agents: ``"rl"``, ``"solo_agent"`` or a custom name."""

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
        """Finds states of earlier runs. Default: only checkpoint folders; the runner of the trainer
        adds run folders and the store."""
        self.checkpoint_name = settings.run_id
        self._initialise_state()

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Raise ParameterError for parameters with which this trainer cannot train.

        Called before any component is built; relative paths of custom protocols start from
        ``base_dir``. The default accepts all.
        """

    @classmethod
    def is_rebuilt_between_stages(cls, hyper_params: HyperParameters) -> bool:
        """Return whether each stage builds a new trainer; True for classes outside Ratchet."""
        return is_custom(cls)

    @abstractmethod
    def train(self) -> None:
        """Train the agents: seed, run the training loop, run the test loop, save."""

    @classmethod
    def has_own_test(cls) -> bool:
        """Return whether the class has a ``_run_test_loop``, which retests saved states."""
        return callable(getattr(cls, "_run_test_loop", None))

    def run_own_test(self) -> None:
        """Run ``_run_test_loop``, which logs its results."""
        self._run_test_loop()  # type: ignore[attr-defined] # called only if has_own_test

    @property
    def protocol_handler(self) -> ProtocolHandler:
        """The interaction protocol of the scenario."""
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

        The runner of the trainer stores them from there.
        """
        values = {name: float(value) for name, value in stats.items()}
        self.history.append(MetricRecord(stage, iteration, values))

    def _add_file_to_artifact(
        self, artifact_name: str, artifact_type: str, file_path: Path
    ) -> Path:
        """Store a copy of a file in the run's folder and in MLflow; return the path of the copy.

        Further files of the artifact are added to it; one of the same name is replaced. Raises
        ParameterError if the run has no id, or the file does not exist.
        """
        if self.settings.run_id is None:
            raise ParameterError(
                "settings.run_id: got None, but a file is stored under the run's id. Set run_id in"
                " the settings."
            )
        folder = Path(self.settings.runs) / self.settings.run_id
        return add_artifact(folder, artifact_name, artifact_type, Path(file_path))

    _add_file_to_wandb_artifact = _add_file_to_artifact
    """Alias for trainers written for Weights & Biases."""


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads, and restore it afterwards."""
    import torch  # takes seconds

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def enter_contexts(
    stack: ExitStack, *contexts: AbstractContextManager[Any]
) -> list[AbstractContextManager[Any]]:
    """Enter contexts, and return them."""
    for context in contexts:
        stack.enter_context(context)
    return list(contexts)
