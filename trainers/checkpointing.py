"""Checkpoints of a trainer: its state, its agents' models, its metrics and random generators.

A loop continues from its ``State`` and the models; metrics and the states of the global generators
are stored next to them, so that training continues bit for bit.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import CheckPointNotFoundError
from ratchet.seeding import put_global_generators, take_global_generators
from ratchet.tracking.environment import PACKAGES, capture_code_state, capture_versions
from ratchet.tracking.trainer_files import (
    METADATA_FILE,
    PARAMETERS_FILE,
    STATE_FOLDER,
    VERSIONS_FOLDER,
    checkpoint_versions,
)
from trainers.custom_state import load_attributes, put_attributes, save_attributes, take_attributes
from trainers.models import load_models
from trainers.state import State

if TYPE_CHECKING:
    from trainers.base import Trainer

PROGRESS_NAME = "progress"
"""Base name of the files of metrics and generators."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetricRecord:
    """The metrics of one iteration of one stage."""

    stage: str
    iteration: int
    values: dict[str, float]


class CheckpointFiles:
    """The checkpoint of one trainer: writes and reads the folders that the trainer's paths name."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.name: str | None = trainer.settings.run_id
        """The run's id unless the runner sets another name; None: none can be saved."""
        self._scopes: tuple[str, ...] = ()
        self._generators: dict[str, Any] | None = None

    # -- writing ---------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write a checkpoint to a temporary folder, and replace the previous one."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        self._fill(temporary_folder)
        old = _old(folder)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            os.replace(folder, old)
        os.replace(temporary_folder, folder)
        shutil.rmtree(old, ignore_errors=True)

    def _fill(self, folder: Path) -> None:
        from trainers.state_tree import save_tree

        trainer = self.trainer
        trainer.save_state_to(folder / STATE_FOLDER)
        save_attributes(take_attributes(trainer, strict=False, in_place=False), folder)
        progress = {
            "history": [asdict(record) for record in trainer.history],
            "scopes": list(self._scopes),
            "generators": take_global_generators(),
        }
        save_tree(progress, folder, PROGRESS_NAME)
        write_json(folder / PARAMETERS_FILE, trainer.hyper_params.to_saved_dict())
        write_json(folder / METADATA_FILE, trainer._get_metadata())

    def write_states(self, folder: Path) -> None:
        """Write the final state, and the versions saved before it, in the format of a stage."""
        trainer = self.trainer
        last = trainer._iterations_done
        trainer.save_state_to(folder / STATE_FOLDER)
        write_json(folder / METADATA_FILE, trainer._get_metadata())
        if self.name is None:
            return
        for iteration, version in checkpoint_versions(trainer.checkpoint_base_dir).items():
            if iteration != last:
                state_folder = folder / VERSIONS_FOLDER / str(iteration) / STATE_FOLDER
                shutil.copytree(version / STATE_FOLDER, state_folder)

    # -- reading ---------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """Read the state of the checkpoint as plain values and tensors.

        Raises CheckPointNotFoundError if none exists.
        """
        base = self.trainer.checkpoint_base_dir
        if not base.exists() and _old(base).exists():  # killed between two renames
            os.replace(_old(base), base)
        return self.read_state(self.trainer.checkpoint_state_path)

    def read_state(self, folder: Path) -> dict[str, Any]:
        """Read a saved state as plain values and tensors."""
        content: dict[str, Any] = type(self.trainer).State.load(folder).to_dict()
        return content

    def find_base_run_state(self, version: str) -> Path:
        """Return the folder of a state of the base run; CheckPointNotFoundError if missing."""
        run_id = self.trainer.hyper_params.base_run.run_id
        if run_id is None:
            raise CheckPointNotFoundError("base_run.run_id: got None, expected the run to load.")
        return self.trainer.state_finder(run_id, version).open()

    def continue_from_own(self) -> None:
        """Continue from the checkpoint: state, models, metrics, attributes and generators."""
        content = self.trainer._load_state_dict_from_active_run_checkpoint()
        self.continue_from(content, self.trainer.checkpoint_state_path)
        self._load_progress(self.trainer.checkpoint_base_dir)

    def continue_from_folder(self, folder: Path) -> None:
        """Continue from the state and the models that :meth:`Trainer.save_state_to` wrote."""
        self.continue_from(self.read_state(folder), folder)

    def continue_from(self, content: Mapping[str, Any], folder: Path) -> None:
        """Continue from the content of a saved state, and the models in its folder."""
        trainer = self.trainer
        trainer.state = type(trainer).State.from_dict(content)
        if isinstance(trainer.state, State):
            load_models(trainer.scenario_instance, folder)

    def _load_progress(self, base: Path) -> None:
        """Restore metrics, plain attributes and generators; old checkpoints have none."""
        from trainers.state_tree import load_tree

        if attributes := load_attributes(base):
            put_attributes(self.trainer, attributes)
        if not (base / f"{PROGRESS_NAME}.json").is_file():
            return
        progress = load_tree(base, PROGRESS_NAME)
        self.trainer.history[:] = [MetricRecord(**record) for record in progress["history"]]
        self._generators = progress
        self._put_generators()

    def has_position(self) -> bool:
        """Return whether a checkpoint exists and records the loop's position.

        One that contains the initial state does not, which is logged.
        """
        if self.name is None:
            return False
        try:
            content = self.trainer._load_state_dict_from_active_run_checkpoint()
        except CheckPointNotFoundError:
            return False
        is_initial = _is_initial(content, type(self.trainer).State)
        if is_initial:
            _LOGGER.warning(
                "%s: its checkpoint contains the initial state, so training starts from scratch."
                " Set self.state.iteration, or another field that records progress, before"
                " save_checkpoint().",
                type(self.trainer).__name__,
            )
        return not is_initial

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


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old")


def _is_initial(content: Mapping[str, Any], kind: type[Any]) -> bool:
    """Return whether a state has the initial values; tensors are not compared."""
    from trainers.state_tree import flatten_tree

    return issubclass(kind, State) and flatten_tree(content)[0] == flatten_tree(kind().to_dict())[0]


@cache
def code_metadata() -> dict[str, str | None]:
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
