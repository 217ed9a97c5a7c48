"""Base class of all trainers.

Imports no tensor library, so that trainers of chat models can use it too.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import CheckPointNotFoundError, ParameterError, explain_renamed
from ratchet.tracking.trainer_files import (
    LATEST,
    METADATA_FILE,
    PARAMETERS_FILE,
    STATE_FOLDER,
    StateFinder,
    add_artifact,
    checkpoint_folder,
    find_checkpoint,
)
from trainers.checkpointing import CheckpointFiles, MetricRecord, code_metadata
from trainers.models import save_models
from trainers.named import NamedTrainer
from trainers.progress import declared_iterations
from trainers.state import State

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.base import AnyScenarioInstance

__all__ = ["CheckPointNotFoundError", "MetricRecord", "Trainer"]


class Trainer(NamedTrainer, ABC):
    """Base of all trainers. Subclasses implement :meth:`train`.

    ``hyper_params`` contains every parameter that affects results, ``settings`` those that must
    not. Attributes that a subclass assigns to ``self`` are stored with the state, and restored when
    a run is resumed; see :mod:`trainers.custom_state`.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {
        "use_critic": "an agent that has one has a value_head, scenario_instance.agents[NAME]",
        "use_single_body": "it is hyper_params.rl.use_shared_body",
    }

    State: ClassVar[type[Any]] = State
    """The class of :attr:`state`."""

    state: Any
    """State of the loop, in addition to the agents' models; initially :attr:`State` ()."""

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
        self.checkpoint_files = CheckpointFiles(self)
        self._initialise_state()

    if not TYPE_CHECKING:  # else type checkers accept every name

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            explain_renamed(self, name)
            return object.__getattribute__(self, name)  # raises the original error

    def _initialise_state(self) -> None:
        """Set the initial :attr:`state`; called once, by the constructor."""
        if issubclass(type(self).State, State):
            self.state = type(self).State()

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Raise ParameterError for parameters with which this trainer cannot train.

        Called before any component is built; relative paths of custom protocols start from
        ``base_dir``. The default accepts all.
        """

    @abstractmethod
    def train(self) -> None:
        """Train the agents: seed, run the training loop, run the test loop, save."""

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

    # -- checkpoints -----------------------------------------------------------------------

    def prepare_training(self) -> None:
        """Continue from the trainer's checkpoint, if it exists; call it before ``train``.

        A checkpoint that contains the initial state does not record the loop's position: it is
        ignored, and training starts from scratch.
        """
        if self.checkpoint_files.has_position():
            self.load_and_set_state_from_checkpoint()

    def save_checkpoint(self, log: bool = True) -> None:
        """Write state and models into the checkpoint's folder, replacing the previous ones.

        With ``log`` also store them permanently, as a version named by the number of finished
        iterations. A test run saves nothing.
        """
        base = self.checkpoint_base_dir
        if self.settings.test_run:
            return
        if log:
            self.checkpoint_files.write(base.with_name(f"{base.name}@{self._iterations_done}"))
        self.checkpoint_files.write(base)

    def save_state_to(self, folder: Path) -> None:
        """Write state and models into a folder, in the format of checkpoints and stages."""
        state = getattr(self, "state", None)
        if state is None or isinstance(state, State):
            save_models(self.scenario_instance, folder, self._iterations_done)
        if state is not None:
            state.save(folder)

    @property
    def _iterations_done(self) -> int:
        return int(getattr(getattr(self, "state", None), "iteration", 0))

    def _get_metadata(self) -> dict[str, Any]:
        """Return a checkpoint's metadata: trainer, iterations, version and commit."""
        name, iteration = self.hyper_params.trainer_name, self._iterations_done
        return {"trainer": name, "iteration": iteration, **code_metadata()}

    def load_and_set_state_from_checkpoint(
        self, from_base_run: bool = False, version: str = LATEST
    ) -> None:
        """Continue from the checkpoint of this run, or from a state of its base run.

        With ``from_base_run``, load ``version`` (``"latest"`` or a number of iterations) of the run
        ``base_run.run_id``. A checkpoint of this run also restores metrics and random generators.

        Raises
        ------
        CheckPointNotFoundError
            If the checkpoint or the base run is missing.
        ParameterError
            If an earlier version of this run is requested.
        """
        files = self.checkpoint_files
        if from_base_run:
            content = self._load_state_dict_from_base_run_checkpoint(version)
            files.continue_from(content, files.find_base_run_state(version))
            return
        if version != LATEST:
            raise ParameterError(
                f"load_and_set_state_from_checkpoint: got version={version!r}, expected"
                f" {LATEST!r} unless from_base_run. To continue from an earlier state of a run,"
                " name it in base_run.run_id, or use `ratchet fork`."
            )
        files.continue_from_own()

    def _load_state_dict_from_active_run_checkpoint(self) -> dict[str, Any]:
        """Read the checkpoint of this run as plain values and tensors.

        Raises CheckPointNotFoundError if none exists.
        """
        return self.checkpoint_files.read()

    def _load_state_dict_from_base_run_checkpoint(self, version: str = LATEST) -> dict[str, Any]:
        """Read a state of the run ``base_run.run_id`` as plain values and tensors.

        The version is ``"latest"`` or a number of finished iterations. Raises
        CheckPointNotFoundError if no run is named, or it has no such state.
        """
        files = self.checkpoint_files
        return files.read_state(files.find_base_run_state(version))

    @classmethod
    def get_checkpoint_base_dir_from_run_id(cls, run_id: str, home: str | None = None) -> Path:
        """Return the folder of a run's checkpoint; ``home`` defaults to that of the settings."""
        from ratchet.parameters.settings import ExperimentSettings

        return checkpoint_folder(home or ExperimentSettings().home, run_id)

    @property
    def checkpoint_base_dir(self) -> Path:
        """The folder of this trainer's checkpoint; ParameterError if the run has no id."""
        name = self.checkpoint_files.name
        if name is None:
            raise ParameterError(
                "settings.run_id: got None, but a checkpoint is stored under the run's id. Set"
                " run_id in the settings, or save `trainer.state` yourself."
            )
        return self.get_checkpoint_base_dir_from_run_id(name, self.settings.home)

    @property
    def checkpoint_state_path(self) -> Path:
        """The folder of the saved state."""
        return self.checkpoint_base_dir / STATE_FOLDER

    @property
    def checkpoint_params_path(self) -> Path:
        """The file with the run's hyper-parameters."""
        return self.checkpoint_base_dir / PARAMETERS_FILE

    @property
    def checkpoint_metadata_path(self) -> Path:
        """The file with the checkpoint's metadata."""
        return self.checkpoint_base_dir / METADATA_FILE

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


@contextmanager
def deterministic_kernels(settings: ExperimentSettings, *, strict: bool = False) -> Iterator[None]:
    """Use deterministic algorithms on an accelerator, unless disabled; restore the mode afterwards.

    An operation that has none causes a warning; with ``strict`` an error, and fused attention gets
    a deterministic backward pass, which torch does not select otherwise. cuDNN's attention, which
    has no deterministic mode, is not used.
    """
    if settings.device == "cpu" or not settings.deterministic:
        yield
        return
    import torch  # takes seconds

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first matrix product
    memory: Any = torch.utils.deterministic
    attention: Any = torch.backends.cuda
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled, fused = memory.fill_uninitialized_memory, attention.cudnn_sdp_enabled()
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    memory.fill_uninitialized_memory = False  # slow, and only reveals reads of unwritten memory
    attention.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        memory.fill_uninitialized_memory = filled
        attention.enable_cudnn_sdp(fused)


@contextmanager
def copying_beside(device: str) -> Iterator[None]:
    """Copy from a GPU in the block, after all work so far, without waiting for other threads'."""
    import torch  # takes seconds

    if torch.device(device).type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def enter_contexts(
    stack: ExitStack, *contexts: AbstractContextManager[Any]
) -> list[AbstractContextManager[Any]]:
    """Enter contexts, and return them."""
    for context in contexts:
        stack.enter_context(context)
    return list(contexts)
