"""Remove what no run needs: stages in the store, and what killed processes have left.

Runs may go on beside it. A stage is removed under its claim, and only if it is still unneeded and
unused when nobody can find it any more.
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
from ratchet.store.collecting import (
    Leftover,
    LeftoverKind,
    remove_from_store,
    unneeded_in_store,
)
from ratchet.store.keys import is_key
from ratchet.store.manifest import MANIFEST_NAME
from ratchet.store.users import EARLIER, StoreUser, forget_user, note_user, store_users
from ratchet.tracking.checkpoint_folders import checkpoint_folder, remove_checkpoints
from ratchet.tracking.presence import runners
from ratchet.tracking.sweep_folder import FILE_NAME

if TYPE_CHECKING:
    from ratchet.store.store import StageStore

DAY_SECONDS = 86400.0
RUNNING_SECONDS = 3600.0
"""Where a run is running, what was used so recently stays: it may be about to record it."""
_JOURNALS = "journals"


@dataclass(frozen=True)
class Limits:
    """What may go.

    Attributes
    ----------
    older_than
        Seconds since the last use; what was used more recently stays.
    run
        Only stages that this run has made.
    free
        Bytes to free; what was used longest ago goes first, and then nothing more.
    down_to
        The same, until finished stages take no more bytes than these.
    unfinished
        Also what is kept of unfinished stages: answers that are paid for, states on the way.
    """

    older_than: float = DAY_SECONDS
    run: str | None = None
    free: int | None = None
    down_to: int | None = None
    unfinished: bool = False


@dataclass(frozen=True)
class Collection:
    """What is to be removed, longest unused first, and what was looked at to know it."""

    leftovers: list[Leftover]
    folders: list[Path]
    num_runs: int
    num_needed: int

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(leftover.size for leftover in self.leftovers)


class Collector:
    """Looks for what no run needs, and removes it.

    Parameters
    ----------
    store
        The store.
    home
        Where journals and checkpoints lie.
    runs
        Runs folders besides those that the store knows.
    forget
        Runs folders that are gone, though the store knows them; one that is here counts.

    Raises
    ------
    RunStateError
        If no runs folder is known, or one that uses the store cannot be seen from here.
    """

    def __init__(
        self,
        store: StageStore,
        home: Path,
        runs: Sequence[Path],
        limits: Limits,
        *,
        forget: Sequence[str] = (),
    ) -> None:
        self._store, self._home, self._limits = store, home, limits
        users = store_users(store)
        gone = {*forget, *(str(Path(each).resolve()) for each in forget)}
        self._forgotten = [user for user in users if user.runs in gone and not user.is_here]
        known = [user for user in users if user not in self._forgotten]
        if not users and not runs:
            raise RunStateError(
                f"gc: {store.place} knows no runs folder that uses it. Name all that do with"
                " --runs."
            )
        _check_all_seen(known)
        self.folders = sorted({path.resolve() for path in [*runs, *(Path(u.runs) for u in known)]})
        self._references = References(store, self.folders)
        self._cutoff = time.time() - limits.older_than

    def look(self) -> Collection:
        """Find what may go; changes nothing. Raises DataError if a run cannot be read."""
        needed = self._references.needed()
        if any(runners(path.parent) for path in self._run_locks()):
            self._cutoff = min(self._cutoff, time.time() - RUNNING_SECONDS)
        found = [*unneeded_in_store(self._store, needed), *self._kept_in_home(), *self._temporary()]
        run = self._limits.run
        fitting = [
            each
            for each in found
            if each.last_used <= self._cutoff and (run is None or each.run_id == run)
        ]
        fitting.sort(key=lambda each: (each.last_used, each.kind, each.name))
        chosen = list(self._within_size(fitting))
        return Collection(chosen, self.folders, self._references.num_runs, len(needed))

    def remove(self, collection: Collection) -> list[Leftover]:
        """Remove it but for what is wanted by now; return what was removed.

        Raises
        ------
        DataError
            If a run that has changed meanwhile cannot be read.
        StoreError
            If the store cannot be written.
        """
        for folder in self.folders:
            note_user(self._store, folder)
        for user in self._forgotten:
            forget_user(self._store, user)
        return [leftover for leftover in collection.leftovers if self._remove(leftover)]

    def _remove(self, leftover: Leftover) -> bool:
        if leftover.kind is LeftoverKind.TEMPORARY:
            path = Path(leftover.name)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            return True
        if leftover.kind in (LeftoverKind.JOURNAL, LeftoverKind.CHECKPOINT):
            return self._remove_from_home(leftover)
        return remove_from_store(self._store, leftover, self._is_wanted)

    def _is_wanted(self, key: str, last_used: float) -> bool:
        return last_used > self._cutoff or key in self._references.needed()  # as it stands now

    def _remove_from_home(self, leftover: Leftover) -> bool:
        folder = self._store.backend.folder
        folder.prepare()
        lock = folder.lock(Path(leftover.name).stem)
        if not lock.try_acquire():
            return False
        try:
            path = Path(leftover.name)
            if leftover.kind is LeftoverKind.CHECKPOINT:
                remove_checkpoints(path)
            elif _file(leftover.kind, path).last_used > leftover.last_used:
                return False  # more was paid for since we looked
            else:
                path.unlink(missing_ok=True)
        finally:
            lock.release()
        return True

    def _within_size(self, leftovers: list[Leftover]) -> Iterator[Leftover]:
        """Take what was used longest ago until enough is freed; all if nothing says how much."""
        limits = self._limits
        wanted = [] if limits.free is None else [limits.free]
        if limits.down_to is not None:
            wanted.append(self._store.size - limits.down_to)
        if not wanted:
            yield from leftovers
            return
        left = max(wanted)
        for leftover in leftovers:
            if left <= 0:
                return
            left -= leftover.size
            yield leftover

    def _kept_in_home(self) -> Iterator[Leftover]:
        """List what is kept until a stage is stored: if it is, or if all unfinished may go."""
        for path in sorted((self._home / _JOURNALS).glob("*.jsonl")):
            if self._may_go(path.stem):
                yield _file(LeftoverKind.JOURNAL, path)
        checkpoints = checkpoint_folder(self._home, "any").parent
        found = checkpoints.iterdir() if checkpoints.is_dir() else ()
        for key in sorted({path.name.partition("@")[0] for path in found}):
            if self._may_go(key):
                files = [f for path in checkpoints.glob(f"{key}*") for f in path.rglob("*")]
                facts = [_file(LeftoverKind.CHECKPOINT, file) for file in files if file.is_file()]
                size = sum(each.size for each in facts)
                newest = max((each.last_used for each in facts), default=0.0)
                name = str(checkpoint_folder(self._home, key))
                yield Leftover(LeftoverKind.CHECKPOINT, name, size, newest)

    def _may_go(self, key: str) -> bool:
        """Return whether nobody needs what a stage has kept: plain Python's have no stage."""
        is_stage = is_key(key)
        return is_stage and (self._limits.unfinished or self._store.peek(key) is not None)

    def _temporary(self) -> Iterator[Leftover]:
        """List what killed writers and imports have left in runs folders, written aside."""
        for path in sorted(each for folder in self.folders for each in _written_aside(folder)):
            leftover = _file(LeftoverKind.TEMPORARY, path)
            is_old = leftover.last_used < time.time() - RUNNING_SECONDS
            if is_old and not runners(path):  # else its writer may live
                yield leftover

    def _run_locks(self) -> Iterator[Path]:
        return (path for folder in self.folders for path in folder.glob("*/.running"))


def _check_all_seen(users: Sequence[StoreUser]) -> None:
    unseen = [user for user in users if not user.is_here]
    if any(user.runs == EARLIER for user in unseen):
        raise RunStateError(
            "gc: the store was used before it took note of runs folders. Name all that use it,"
            f" once: `ratchet gc --runs FOLDER --runs … --forget {EARLIER}`."
        )
    if unseen:
        named = ", ".join(f"{user.runs} on {user.host}" for user in unseen)
        forget = " ".join(f"--forget {user.runs}" for user in unseen)
        raise RunStateError(
            f"gc: {named} uses this store and cannot be seen from here (a folder of that name may"
            " be another one), so that nobody knows what its runs need. Run it where that folder"
            " is; if it is gone or has moved (then name the new place with --runs):"
            f" `ratchet gc {forget}`."
        )


def _written_aside(runs: Path) -> Iterator[Path]:
    """List what is written aside for imports, runs and sweeps; other folders are somebody's own."""
    yield from runs.glob(".import-*.tmp")
    for name in (MANIFEST_NAME, FILE_NAME):
        for file in runs.glob(f"*/{name}"):
            yield from file.parent.glob("**/.*.tmp")


def _file(kind: LeftoverKind, path: Path) -> Leftover:
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return Leftover(kind, str(path), status.st_size, status.st_mtime)
    return Leftover(kind, str(path), 0, time.time())
