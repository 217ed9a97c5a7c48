"""States that earlier runs have saved: found by run and version, known by their content.

Whoever builds on another run asks here: agents that are loaded, base runs, checkpoints. A run of
stages has a state in the store for each of its train stages; one that was trained by ``train()``
alone has its checkpoint folder.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ratchet.errors import RunNotFoundError
from ratchet.tracking.checkpoint_folders import (
    STATE_FOLDER,
    SavedState,
    checkpoint_states,
    choose_version,
    state_digest,
)
from ratchet.tracking.manifest import MAIN_ARM

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from ratchet.tracking.run_folder import RunFolder

_FIRST_STAGES = ("initial_state", "pretrained_state")


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
    prefix = f"{STATE_FOLDER}/"
    for record in [*first, *(record for record in records if record.stage == "train")]:
        stage = store.peek(record.key)
        if stage is None:
            continue
        files = {
            name.removeprefix(prefix): entry.sha256
            for name, entry in stage.files.items()
            if name.startswith(prefix)
        }
        if files:
            found[record.iteration] = SavedState(
                folder.run_id,
                record.iteration,
                state_digest(files),
                manifest.arms[arm],
                partial(_open, store, record.key),
            )
    return found


def _open(store: StageStore, key: str) -> Path:
    return store.open(key) / STATE_FOLDER
