"""Checkpoints that a trainer saves by itself, and which of a run's saved states is meant.

Trainers stand on it, so it knows neither store nor run folders; see
:mod:`ratchet.experiment_files.saved_states` for the states of all runs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import CheckPointNotFoundError

LATEST = "latest"
STATE_FOLDER = "state"
PARAMETERS_FILE = "hyper_params.json"
METADATA_FILE = "metadata.json"
VERSIONS_FOLDER = "versions"
"""Where a stage has the versions that a trainer saved on the way: a folder for each iteration."""


@dataclass(frozen=True)
class SavedState:
    """A state that a run has saved.

    Attributes
    ----------
    iteration
        The training iterations that led to it.
    digest
        SHA-256 of what its files are called and hold: the same for the same state, wherever it
        lies and whichever run has made it.
    open
        Gives the folder with the state's files; checks them if they lie in the store.
    """

    run_id: str
    iteration: int
    digest: str
    hyper_params: Mapping[str, Any]
    open: Callable[[], Path]


StateFinder = Callable[[str, str], SavedState]
"""Finds a state by run and version."""


def checkpoint_folder(home: str | Path, run_id: str, version: int | None = None) -> Path:
    """Return the folder of a run's checkpoint, or of one of its versions."""
    name = run_id if version is None else f"{run_id}@{version}"
    return Path(home) / "checkpoints" / name


def checkpoint_versions(base: Path) -> dict[int, Path]:
    """Return the folders of a checkpoint's versions, by the iterations that led to them."""
    named = {path.name.rpartition("@")[2]: path for path in base.parent.glob(f"{base.name}@*")}
    return {int(version): path for version, path in named.items() if version.isdecimal()}


def remove_checkpoints(base: Path) -> None:
    """Remove a checkpoint, its versions, and what a killed process has left of one."""
    if not base.parent.is_dir():
        return
    for pattern in (base.name, f"{base.name}@*", f".{base.name}-*", f".{base.name}@*"):
        for path in base.parent.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def checkpoint_states(home: str | Path, run_id: str) -> dict[int, SavedState]:
    """Find the checkpoints of a run: iterations → state. None if there is no such run."""
    latest = checkpoint_folder(home, run_id)
    if Path(run_id).name != run_id:  # a path, or nothing at all
        return {}
    found = {}
    for base in (*sorted(latest.parent.glob(f"{run_id}@*")), latest):
        folder = base / STATE_FOLDER
        if not (base / METADATA_FILE).is_file() or not folder.is_dir():
            continue
        iteration = int(json.loads((base / METADATA_FILE).read_bytes())["iteration"])
        files = {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        parameters = json.loads((base / PARAMETERS_FILE).read_bytes())
        found[iteration] = SavedState(
            run_id, iteration, state_digest(files), parameters, folder.absolute
        )
    return found


def find_checkpoint(home: str | Path, run_id: str, version: str) -> SavedState:
    """Find a checkpoint that a run's trainer has saved by itself.

    Raises
    ------
    CheckPointNotFoundError
        If there is none of that version.
    """
    states = checkpoint_states(home, run_id)
    found = [states[iteration] for iteration in sorted(states)]
    return choose_version(found, version, f"run {run_id} in {checkpoint_folder(home, run_id)}")


def choose_version(states: Sequence[SavedState], version: str, whose: str) -> SavedState:
    """Choose one of the states of a run.

    Parameters
    ----------
    states
        The one with the fewest iterations first.
    version
        ``"latest"``, or the number of training iterations that led to it.
    whose
        What the states are of, for the message.

    Raises
    ------
    CheckPointNotFoundError
        If the run has no such state; the message says which it has.
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
