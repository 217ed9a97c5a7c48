"""Checkpoints of a trainer: its state, its agents' models, its metrics, and their paths.

A loop continues from its ``State`` and the models; metrics and the states of the global generators
are stored next to them, so that training continues bit for bit.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import CheckPointNotFoundError, ParameterError
from ratchet.seeding import put_global_generators, take_global_generators
from ratchet.tracking.environment import PACKAGES, capture_code_state, capture_versions
from ratchet.tracking.trainer_files import (
    LATEST,
    METADATA_FILE,
    PARAMETERS_FILE,
    STATE_FOLDER,
    VERSIONS_FOLDER,
    StateFinder,
    checkpoint_folder,
    checkpoint_versions,
)
from trainers.custom_state import (
    load_attributes,
    put_attributes,
    save_attributes,
    take_attributes,
)
from trainers.models import load_models, save_models
from trainers.named import NamedTrainer
from trainers.state import State

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.base import AnyScenarioInstance

PROGRESS_NAME = "progress"
"""Base name of the files of metrics and generators."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetricRecord:
    """The metrics of one iteration of one stage."""

    stage: str
    iteration: int
    values: dict[str, float]


class CheckpointingTrainer(NamedTrainer, ABC):
    """State of a trainer that checkpoints save and restore."""

    hyper_params: HyperParameters
    scenario_instance: AnyScenarioInstance
    settings: ExperimentSettings
    history: list[MetricRecord]
    state_finder: StateFinder

    State: ClassVar[type[Any]] = State
    """The class of :attr:`state`."""

    state: Any
    """State of the loop, in addition to the agents' models; initially :attr:`State` ()."""

    checkpoint_name: str | None = None
    """Name of this trainer's checkpoint: the run's id unless the runner sets another.

    None: checkpoints cannot be saved.
    """

    _scopes: tuple[str, ...] = ()
    _generators: dict[str, Any] | None = None

    def _initialise_state(self) -> None:
        """Set the initial :attr:`state`; called once, by the constructor."""
        if issubclass(type(self).State, State):
            self.state = type(self).State()

    def prepare_training(self) -> None:
        """Continue from the trainer's checkpoint, if it exists; call it before ``train``.

        A checkpoint that contains the initial state does not record the loop's position: it is
        ignored, and training starts from scratch.
        """
        if self.checkpoint_name is None:
            return
        try:
            content = self._load_state_dict_from_active_run_checkpoint()
        except CheckPointNotFoundError:
            return
        if _is_initial(content, type(self).State):
            _LOGGER.warning(
                "%s: its checkpoint contains the initial state, so training starts from scratch."
                " Set self.state.iteration, or another field that records progress, before"
                " save_checkpoint().",
                type(self).__name__,
            )
            return
        self.load_and_set_state_from_checkpoint()

    # -- saving ----------------------------------------------------------------------------

    def save_checkpoint(self, log: bool = True) -> None:
        """Write state and models into the checkpoint's folder, replacing the previous ones.

        With ``log`` also store them permanently, as a version named by the number of finished
        iterations. A test run saves nothing.
        """
        base = self.checkpoint_base_dir
        if self.settings.test_run:
            return
        if log:
            self._write_checkpoint(base.with_name(f"{base.name}@{self._iterations_done}"))
        self._write_checkpoint(base)

    def save_state_to(self, folder: Path) -> None:
        """Write state and models into a folder, in the format of checkpoints and stages."""
        state = getattr(self, "state", None)
        if state is None or isinstance(state, State):
            save_models(self.scenario_instance, folder, self._iterations_done)
        if state is not None:
            state.save(folder)

    def write_states(self, folder: Path) -> None:
        """Write the final state, and the versions saved before it, in the format of a stage."""
        last = self._iterations_done
        self.save_state_to(folder / STATE_FOLDER)
        write_json(folder / METADATA_FILE, self._get_metadata())
        if self.checkpoint_name is None:
            return
        for iteration, version in checkpoint_versions(self.checkpoint_base_dir).items():
            if iteration != last:
                place = folder / VERSIONS_FOLDER / str(iteration) / STATE_FOLDER
                shutil.copytree(version / STATE_FOLDER, place)

    def _write_checkpoint(self, folder: Path) -> None:
        """Write a checkpoint to a temporary folder, and replace the previous one."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        self._fill_checkpoint(aside)
        old = _old(folder)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            os.replace(folder, old)
        os.replace(aside, folder)
        shutil.rmtree(old, ignore_errors=True)

    def _fill_checkpoint(self, folder: Path) -> None:
        from trainers.state_tree import save_tree

        self.save_state_to(folder / STATE_FOLDER)
        save_attributes(take_attributes(self, strict=False, in_place=False), folder)
        progress = {
            "history": [asdict(record) for record in self.history],
            "scopes": list(self._scopes),
            "generators": take_global_generators(),
        }
        save_tree(progress, folder, PROGRESS_NAME)
        write_json(folder / PARAMETERS_FILE, self.hyper_params.to_saved_dict())
        write_json(folder / METADATA_FILE, self._get_metadata())

    def _get_metadata(self) -> dict[str, Any]:
        """Return a checkpoint's metadata: trainer, iterations, version and commit."""
        return {
            "trainer": self.hyper_params.trainer_name,
            "iteration": self._iterations_done,
            **_code(),
        }

    @property
    def _iterations_done(self) -> int:
        return int(getattr(getattr(self, "state", None), "iteration", 0))

    # -- loading ---------------------------------------------------------------------------

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
        if from_base_run:
            content = self._load_state_dict_from_base_run_checkpoint(version)
            self._continue_from(content, self._base_run_state(version))
            return
        if version != LATEST:
            raise ParameterError(
                f"load_and_set_state_from_checkpoint: got version={version!r}, expected"
                f" {LATEST!r} unless from_base_run. To continue from an earlier state of a run,"
                " name it in base_run.run_id, or use `ratchet fork`."
            )
        content = self._load_state_dict_from_active_run_checkpoint()
        self._continue_from(content, self.checkpoint_state_path)
        self._load_progress(self.checkpoint_base_dir)

    def load_state_from(self, folder: Path) -> None:
        """Continue from the state and the models that :meth:`save_state_to` wrote."""
        self._continue_from(type(self).State.load(folder).to_dict(), folder)

    def _continue_from(self, content: Mapping[str, Any], folder: Path) -> None:
        self.state = type(self).State.from_dict(content)
        if isinstance(self.state, State):
            load_models(self.scenario_instance, folder)

    def _load_state_dict_from_active_run_checkpoint(self) -> dict[str, Any]:
        """Read the checkpoint of this run as plain values and tensors.

        Raises CheckPointNotFoundError if there is none.
        """
        base = self.checkpoint_base_dir
        if not base.exists() and _old(base).exists():  # killed between two renames
            os.replace(_old(base), base)
        content: dict[str, Any] = type(self).State.load(self.checkpoint_state_path).to_dict()
        return content

    def _load_state_dict_from_base_run_checkpoint(self, version: str = LATEST) -> dict[str, Any]:
        """Read a state of the run ``base_run.run_id`` as plain values and tensors.

        The version is ``"latest"`` or a number of finished iterations. Raises
        CheckPointNotFoundError if no run is named, or it has no such state.
        """
        content: dict[str, Any] = type(self).State.load(self._base_run_state(version)).to_dict()
        return content

    def _base_run_state(self, version: str) -> Path:
        run_id = self.hyper_params.base_run.run_id
        if run_id is None:
            raise CheckPointNotFoundError("base_run.run_id: got None, expected the run to load.")
        return self.state_finder(run_id, version).open()

    def _load_progress(self, base: Path) -> None:
        """Restore metrics, plain attributes and generators; old checkpoints have none."""
        from trainers.state_tree import load_tree

        if attributes := load_attributes(base):
            put_attributes(self, attributes)
        if not (base / f"{PROGRESS_NAME}.json").is_file():
            return
        progress = load_tree(base, PROGRESS_NAME)
        self.history[:] = [MetricRecord(**record) for record in progress["history"]]
        self._generators = progress
        self._put_generators()

    # -- random numbers --------------------------------------------------------------------

    @contextmanager
    def resumable(self, scope: str) -> Iterator[None]:
        """Run a part of training in which a checkpoint may be saved.

        After loading such a checkpoint, the part continues with the random generators stored in it,
        regardless of seeds set before it starts.
        """
        before = self._scopes
        self._scopes = (*before, scope)
        self._put_generators()
        try:
            yield
        finally:
            self._scopes = before

    def _put_generators(self) -> None:
        """Restore loaded generators if they were saved in the current scope."""
        loaded = self._generators
        if loaded is not None and tuple(loaded["scopes"]) == self._scopes:
            put_global_generators(loaded["generators"])
            self._generators = None

    # -- paths ----------------------------------------------------------------------------

    @classmethod
    def get_checkpoint_base_dir_from_run_id(cls, run_id: str, home: str | None = None) -> Path:
        """Return the folder of a run's checkpoint; ``home`` defaults to that of the settings."""
        from ratchet.parameters.settings import ExperimentSettings

        return checkpoint_folder(home or ExperimentSettings().home, run_id)

    @property
    def checkpoint_base_dir(self) -> Path:
        """The folder of this trainer's checkpoint; ParameterError if the run has no id."""
        if self.checkpoint_name is None:
            raise ParameterError(
                "settings.run_id: got None, but a checkpoint is stored under the run's id. Set"
                " run_id in the settings, or save `trainer.state` yourself."
            )
        return self.get_checkpoint_base_dir_from_run_id(self.checkpoint_name, self.settings.home)

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


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old")


def _is_initial(content: Mapping[str, Any], kind: type[Any]) -> bool:
    """Return whether a state has the initial values; tensors are not compared."""
    from trainers.state_tree import flatten_tree

    return issubclass(kind, State) and flatten_tree(content)[0] == flatten_tree(kind().to_dict())[0]


@cache
def _code() -> dict[str, str | None]:
    """Return name, version and commit of this package, determined once per process."""
    name = PACKAGES[0]
    return {
        "package_name": name,
        "package_version": capture_versions().get(name),
        "git_sha": capture_code_state().commit,
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data as JSON; equal data yields equal bytes."""
    text = json.dumps(content, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
