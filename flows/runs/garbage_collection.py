"""Garbage collection: delete stages that no run needs and files left by killed processes.

Safe while runs execute: a stage is deleted under its claim, and only if it is still unneeded and
unused after it was hidden from readers.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.runs.references import References
from ratchet.errors import RunStateError
from ratchet.store.archive import abandoned_archives
from ratchet.store.garbage_collection import (
    GarbageItem,
    GarbageKind,
    StoreUser,
    forget_user,
    garbage_in_store,
    note_user,
    remove_from_store,
    store_users,
)
from ratchet.store.keys import is_key
from ratchet.store.manifest import MANIFEST_NAME
from ratchet.tracking.run_folder import SWEEP_FILE, RunFolder
from ratchet.tracking.run_lock import runners
from ratchet.tracking.trainer_files import checkpoint_folder, remove_checkpoints

if TYPE_CHECKING:
    from ratchet.store.store import StageStore

DAY_SECONDS = 86400.0
RUNNING_SECONDS = 3600.0
"""While a run is running, items used within this period stay: it may be about to record them."""
_UNLOCKED_SECONDS = 1.0
"""An import locks its folder within this time."""
_JOURNALS = "journals"


@dataclass(frozen=True)
class RetentionLimits:
    """Limits on the items that may be deleted.

    Attributes
    ----------
    older_than
        Minimum age in seconds since the last use.
    run
        If given, only stages that this run computed.
    free
        Bytes to free, least recently used items first.
    down_to
        Maximum size of finished stages in bytes; least recently used items are deleted first.
    unfinished
        Also delete data of unfinished stages: paid responses and intermediate checkpoints.
    """

    older_than: float = DAY_SECONDS
    run: str | None = None
    free: int | None = None
    down_to: int | None = None
    unfinished: bool = False


@dataclass(frozen=True)
class GarbageCollectionPlan:
    """Items to delete, least recently used first, and the number of runs and stages checked."""

    leftovers: list[GarbageItem]
    folders: list[Path]
    num_runs: int
    num_needed: int


class GarbageCollector:
    """Finds and deletes items that no run needs.

    Parameters
    ----------
    store
        The store.
    home
        Folder of journals and checkpoints.
    runs
        Runs folders in addition to those registered in the store.
    forget
        Registered runs folders that were deleted; ignored for folders that exist here.
    """

    def __init__(
        self,
        store: StageStore,
        home: Path,
        runs: Sequence[Path],
        limits: RetentionLimits,
        *,
        forget: Sequence[str] = (),
    ) -> None:
        self._store, self._home, self._limits = store, home, limits
        users = store_users(store)
        gone = {*forget, *(str(Path(each).resolve()) for each in forget)}
        self._forgotten = [user for user in users if user.runs in gone and not user.is_local]
        registered = [user for user in users if user not in self._forgotten]
        if not users and not runs:
            raise RunStateError(
                f"gc: no runs folder is registered in {store.location}. Name all that use it with"
                " --runs-dir."
            )
        check_accessible(registered)
        self.folders = sorted(
            {path.resolve() for path in [*runs, *(Path(u.runs) for u in registered)]}
        )
        self._references = References(store, self.folders)
        self._now = time.time() - max(map(_forward_jump, self.folders), default=0.0)
        self._cutoff = self._now - limits.older_than

    def plan(self) -> GarbageCollectionPlan:
        """List the items to delete, without deleting them; DataError if a run is unreadable."""
        needed = self._references.needed()
        locks = (path for folder in self.folders for path in folder.glob("*/.running"))
        if any(runners(path.parent) for path in locks):
            self._cutoff = min(self._cutoff, self._now - RUNNING_SECONDS)
        unneeded = garbage_in_store(self._store, needed)
        candidates = [*unneeded, *self._stage_files(), *self._temporary()]
        run = self._limits.run
        matching = [
            each
            for each in candidates
            if each.last_used <= self._cutoff and (run is None or each.run_id == run)
        ]
        matching.sort(key=lambda each: (each.last_used, each.kind, each.name))
        chosen = list(self._within_size(matching))
        return GarbageCollectionPlan(chosen, self.folders, self._references.num_runs, len(needed))

    def remove(self, plan: GarbageCollectionPlan) -> list[GarbageItem]:
        """Delete the planned items, except items used since; return the deleted ones."""
        for folder in self.folders:
            note_user(self._store, folder)
        for user in self._forgotten:
            forget_user(self._store, user)
        return [leftover for leftover in plan.leftovers if self._remove(leftover)]

    def _remove(self, leftover: GarbageItem) -> bool:
        if leftover.kind is GarbageKind.TEMPORARY:
            path = Path(leftover.name)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            return True
        if leftover.kind in (GarbageKind.JOURNAL, GarbageKind.CHECKPOINT):
            return self._remove_from_home(leftover)
        return remove_from_store(self._store, leftover, self._is_needed)

    def _is_needed(self, key: str, last_used: float) -> bool:
        return last_used > self._cutoff or key in self._references.needed()  # reads the runs again

    def _remove_from_home(self, leftover: GarbageItem) -> bool:
        folder = self._store.backend.folder
        folder.prepare()
        lock = folder.lock(Path(leftover.name).stem)
        if not lock.try_acquire():
            return False
        try:
            path = Path(leftover.name)
            if leftover.kind is GarbageKind.CHECKPOINT:
                remove_checkpoints(path)
            elif _file(leftover.kind, path).last_used > leftover.last_used:
                return False  # it was extended since
            else:
                path.unlink(missing_ok=True)
        finally:
            lock.release()
        return True

    def _within_size(self, leftovers: list[GarbageItem]) -> Iterator[GarbageItem]:
        """Yield the least recently used items until enough is freed; all without a size limit."""
        limits = self._limits
        amounts = [] if limits.free is None else [limits.free]
        if limits.down_to is not None:
            amounts.append(self._store.size - limits.down_to)
        if not amounts:
            yield from leftovers
            return
        left = max(amounts)
        for leftover in leftovers:
            if left <= 0:
                return
            left -= leftover.size
            yield leftover

    def _stage_files(self) -> Iterator[GarbageItem]:
        """Yield journals and checkpoints of stored stages, of unfinished ones only on request."""
        for path in sorted((self._home / _JOURNALS).glob("*.jsonl")):
            if self._may_delete(path.stem):
                yield _file(GarbageKind.JOURNAL, path)
        checkpoints = checkpoint_folder(self._home, "any").parent
        paths = checkpoints.iterdir() if checkpoints.is_dir() else ()
        for key in sorted({path.name.partition("@")[0] for path in paths}):
            if self._may_delete(key):
                files = [f for path in checkpoints.glob(f"{key}*") for f in path.rglob("*")]
                facts = [_file(GarbageKind.CHECKPOINT, file) for file in files if file.is_file()]
                size = sum(each.size for each in facts)
                newest = max((each.last_used for each in facts), default=0.0)
                name = str(checkpoint_folder(self._home, key))
                yield GarbageItem(GarbageKind.CHECKPOINT, name, size, newest)

    def _may_delete(self, key: str) -> bool:
        """Return whether a name is a stage's key and no process needs the stage's files."""
        is_stage = is_key(key)
        return is_stage and (self._limits.unfinished or self._store.peek(key) is not None)

    def _temporary(self) -> Iterator[GarbageItem]:
        """Yield temporary files of killed writers and imports in runs folders."""
        for path in sorted(each for folder in self.folders for each in _temporary_files(folder)):
            leftover = _file(GarbageKind.TEMPORARY, path)
            # an import's folder is locked soon after it is created, a run's files are not
            is_import = path.name.startswith(".import-")
            age = _UNLOCKED_SECONDS if is_import else RUNNING_SECONDS
            if leftover.last_used < self._now - age and not runners(path):
                yield leftover
        folders = {Path.cwd(), *self.folders, *(folder.parent for folder in self.folders)}
        for path in sorted(each for folder in folders for each in abandoned_archives(folder)):
            yield _file(GarbageKind.TEMPORARY, path)


def _forward_jump(runs: Path) -> float:
    """Return the seconds by which the system's time was set forward since a run started.

    Items used before seem older by that much. Unknown, and 0, for runs before the last boot.
    """
    starts = (RunFolder(path.parent).manifest.started for path in runs.glob(f"*/{MANIFEST_NAME}"))
    return max((start.forward_jump() for start in starts if start is not None), default=0.0)


def check_accessible(users: Sequence[StoreUser]) -> None:
    """Raise RunStateError if a runs folder that uses a store can't be read here."""
    missing = [user for user in users if not user.is_local]
    if missing:
        names = ", ".join(f"{user.runs} on {user.host}" for user in missing)
        forget = " ".join(f"--unregister {user.runs}" for user in missing)
        raise RunStateError(
            f"gc: {names} uses this store and is not accessible here (a local folder of the same"
            " name may differ), so that the stages its runs need are unknown. Run the command where"
            " that folder is. If it was deleted, or moved (name its new path with --runs-dir):"
            f" `ratchet gc {forget}`."
        )


def _temporary_files(runs: Path) -> Iterator[Path]:
    """Yield temporary files of imports, runs and sweeps; other folders may be the user's."""
    yield from runs.glob(".import-*.tmp")
    for name in (MANIFEST_NAME, SWEEP_FILE):
        for file in runs.glob(f"*/{name}"):
            yield from file.parent.glob("**/.*.tmp")


def _file(kind: GarbageKind, path: Path) -> GarbageItem:
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return GarbageItem(kind, str(path), status.st_size, status.st_mtime)
    return GarbageItem(kind, str(path), 0, time.time())
