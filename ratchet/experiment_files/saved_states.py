"""States that earlier runs have saved: found by run and version, known by their content.

Whoever builds on another run asks here: agents that are loaded, base runs, checkpoints. A run of
stages has a state in the store for each of its train stages; that of a trainer with a loop of its
own has those that were saved on the way, and the last; what was trained in plain Python has its
checkpoint folder.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from ratchet.errors import RunNotFoundError
from ratchet.tracking.checkpoint_folders import (
    METADATA_FILE,
    STATE_FOLDER,
    VERSIONS_FOLDER,
    SavedState,
    checkpoint_states,
    choose_version,
    state_digest,
)
from ratchet.tracking.manifest import MAIN_ARM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.run_folder import RunFolder

_FIRST_STAGES = ("initial_state", "pretrained_state", "imitated_state")
_TRAINING = ("train", "run_trainer")


def saved_states(
    run: str, settings: ExperimentSettings, *, arm: str = MAIN_ARM
) -> list[SavedState]:
    """Return the states of a run's arm, the one with the fewest iterations first.

    ``run`` is the run's id, its beginning, or its folder.

    Raises
    ------
    RunNotFoundError
        If there is neither such a run nor such a checkpoint.
    """
    from ratchet.tracking.run_folder import find_run

    try:
        folder = find_run(settings.runs, run)
    except RunNotFoundError:
        found = checkpoint_states(settings.home, run)
        if not found:
            raise
    else:
        found = checkpoint_states(settings.home, folder.run_id) if arm == MAIN_ARM else {}
        found |= _stored(folder, settings, arm)
    return [found[iteration] for iteration in sorted(found)]


def find_saved_state(
    run: str, version: str, settings: ExperimentSettings, *, arm: str = MAIN_ARM
) -> SavedState:
    """Return a state of a run, which is given as in :func:`saved_states`.

    ``version`` is ``"latest"``, or the number of training iterations that led to it.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    CheckPointNotFoundError
        If the run has no such state; the message says which it has.
    """
    states = saved_states(run, settings, arm=arm)
    return choose_version(states, version, f"run {run} (arm {arm!r})")


def _stored(folder: RunFolder, settings: ExperimentSettings, arm: str) -> dict[int, SavedState]:
    """Return the states in the store: iterations → state."""
    from ratchet.store.store import StageStore

    manifest = folder.manifest
    store = StageStore(settings.store_url)
    records = [record for record in manifest.stages if record.arm == arm]
    first = [record for record in records if record.stage in _FIRST_STAGES]
    found = {}
    for record in [*first, *(record for record in records if record.stage in _TRAINING)]:
        stage = store.peek(record.key)
        if stage is None:
            continue
        for iteration, folder_name in _places(store, stage):
            files = _files(stage, folder_name)
            if files:
                found[iteration] = SavedState(
                    folder.run_id,
                    iteration,
                    state_digest(files),
                    manifest.arms[arm],
                    partial(_open, store, record.key, folder_name),
                )
    return found


def _places(store: StageStore, stage: Manifest) -> Iterator[tuple[int, str]]:
    """Return the states that a stage has: the iterations that led to each, and its folder."""
    if stage.stage != "run_trainer":
        yield stage.iteration, STATE_FOLDER
        return
    prefix = f"{VERSIONS_FOLDER}/"
    versions = {name.split("/")[1] for name in stage.files if name.startswith(prefix)}
    for version in sorted(versions):
        yield int(version), f"{prefix}{version}/{STATE_FOLDER}"
    if METADATA_FILE in stage.files:
        metadata = json.loads((store.open(stage.key) / METADATA_FILE).read_bytes())
        yield int(metadata["iteration"]), STATE_FOLDER


def _files(stage: Manifest, folder: str) -> dict[str, str]:
    prefix = f"{folder}/"
    return {
        name.removeprefix(prefix): entry.sha256
        for name, entry in stage.files.items()
        if name.startswith(prefix)
    }


def _open(store: StageStore, key: str, folder: str) -> Path:
    return store.open(key) / folder
