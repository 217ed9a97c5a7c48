"""Checkpoints and artifacts that trainers save, and selection of a run's saved states.

Trainers import it, so it opens neither store nor run folders; see
:mod:`ratchet.experiment_files.base_run` for the states of all runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import CheckPointNotFoundError, ParameterError
from ratchet.store.local import hash_file

LATEST = "latest"
STATE_FOLDER = "state"
PARAMETERS_FILE = "hyper_params.json"
METADATA_FILE = "metadata.json"
VERSIONS_FOLDER = "versions"
"""Folder in a stage with the versions saved during training, one folder for each iteration."""


@dataclass(frozen=True)
class SavedState:
    """A state that a run has saved.

    Attributes
    ----------
    iteration
        The training iterations that led to it.
    digest
        SHA-256 of the names and contents of its files: equal for equal states of any run and
        folder.
    open
        Returns the folder with the state's files, after verification if they are in the store.
    folder_of
        Returns the folder of another stage's state by key; None for checkpoints.
    """

    run_id: str
    iteration: int
    digest: str
    hyper_params: Mapping[str, Any]
    open: Callable[[], Path]
    folder_of: Callable[[str], Path] | None = None


StateFinder = Callable[[str, str], SavedState]
"""Finds a state by run and version."""


def checkpoint_folder(home: str | Path, run_id: str) -> Path:
    """Return the folder of a run's checkpoint."""
    return Path(home) / "checkpoints" / run_id


def checkpoint_versions(base: Path) -> dict[int, Path]:
    """Return the folders of a checkpoint's versions, by the iterations that led to them."""
    named = {path.name.rpartition("@")[2]: path for path in base.parent.glob(f"{base.name}@*")}
    return {int(version): path for version, path in named.items() if version.isdecimal()}


def remove_checkpoints(base: Path) -> None:
    """Remove a checkpoint, its versions, and partial ones of killed processes."""
    if not base.parent.is_dir():
        return
    for pattern in (base.name, f"{base.name}@*", f".{base.name}-*", f".{base.name}@*"):
        for path in base.parent.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def checkpoint_states(home: str | Path, run_id: str) -> dict[int, SavedState]:
    """Find the checkpoints of a run: iterations → state; empty if the run does not exist."""
    latest = checkpoint_folder(home, run_id)
    if Path(run_id).name != run_id:  # a path, or empty
        return {}
    states = {}
    for base in (*sorted(latest.parent.glob(f"{run_id}@*")), latest):
        folder = base / STATE_FOLDER
        if not (base / METADATA_FILE).is_file() or not folder.is_dir():
            continue
        iteration = int(json.loads((base / METADATA_FILE).read_bytes())["iteration"])
        files = {
            path.relative_to(folder).as_posix(): hash_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        parameters = json.loads((base / PARAMETERS_FILE).read_bytes())
        states[iteration] = SavedState(
            run_id, iteration, state_digest(files), parameters, folder.absolute
        )
    return states


def find_checkpoint(home: str | Path, run_id: str, version: str) -> SavedState:
    """Find a checkpoint that a run's trainer has saved."""
    states = checkpoint_states(home, run_id)
    ordered_states = [states[iteration] for iteration in sorted(states)]
    return choose_version(
        ordered_states, version, f"run {run_id} in {checkpoint_folder(home, run_id)}"
    )


def choose_version(states: Sequence[SavedState], version: str, whose: str) -> SavedState:
    """Choose one of the states of a run.

    Parameters
    ----------
    states
        Sorted by number of iterations.
    version
        ``"latest"``, or the number of training iterations that led to it.
    whose
        Owner of the states, for the message.
    """
    if states and version == LATEST:
        return states[-1]
    for state in states:
        if str(state.iteration) == str(version):
            return state
    known = ", ".join(str(state.iteration) for state in states)
    has = f"it has those after {known} iterations" if known else "it has none"
    raise CheckPointNotFoundError(
        f"{whose} has no saved state {version!r}: {has}. Expected one of those numbers, or"
        f" {LATEST!r}."
    )


def state_digest(files: Mapping[str, str]) -> str:
    """Return the digest of a state from the digests of its files, by path."""
    text = json.dumps(dict(files), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


ARTIFACTS_FOLDER = "artifacts"


def add_artifact(run_folder: Path, name: str, kind: str, file: Path) -> Path:
    """Copy a file to ``artifacts/KIND/NAME/`` of a run; return the copy's path.

    A file of the same name is replaced; missing folders are created.
    """
    for what, argument in (("name", name), ("type", kind)):
        if not argument or Path(argument).name != argument:
            raise ParameterError(f"artifact {what}: got {argument!r}, expected a file's name.")
    if not file.is_file():
        raise ParameterError(f"artifact {name!r}: got {file}, expected an existing file.")
    folder = run_folder / ARTIFACTS_FOLDER / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary_file = tempfile.mkstemp(dir=folder.parent, prefix=f".{name}-")
    os.close(handle)
    shutil.copyfile(file, temporary_file)
    os.chmod(temporary_file, 0o644)
    os.replace(temporary_file, folder / file.name)
    return folder / file.name
