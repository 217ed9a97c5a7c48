"""Garbage of a store: unneeded stages, remains and damaged stages, and the store's users.

:mod:`flows.runs.references` decides which stages runs need. A store has a note of each runs folder
that uses it, so that gc removes nothing which their runs need. A folder that can't be seen from
here (moved, deleted, or on another machine) may contain runs that were not considered.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ratchet.errors import DataError, StoreError
from ratchet.store.backend import store_errors

if TYPE_CHECKING:
    from ratchet.store.store import StageStore


class GarbageKind(StrEnum):
    """Kind of removable data."""

    STAGE = "stage"
    """A finished stage that no run needs."""
    PART = "part of a stage"
    """The remains of an interrupted upload or removal."""
    COPY = "copy"
    """The local copy of a stage that is no longer at the store's URL."""
    DAMAGED = "damaged stage"
    """A quarantined stage, which did not match its manifest."""
    WORK = "unfinished work"
    """The work folder of a killed process."""
    JOURNAL = "journal"
    """Responses saved until their stage is stored."""
    CHECKPOINT = "checkpoint"
    """A trainer's state saved until its stage is stored."""
    TEMPORARY = "temporary file"
    """A file of a killed process in a runs folder."""


@dataclass(frozen=True)
class GarbageItem:
    """One removable item; ``name`` is a key, a name in the store, or a path."""

    kind: GarbageKind
    name: str
    size: int
    last_used: float
    run_id: str | None = None


def garbage_in_store(store: StageStore, needed: frozenset[str]) -> Iterator[GarbageItem]:
    """List the garbage of a store without changing it; ``needed`` are the keys to keep."""
    backend = store.backend
    with store_errors("list the stages", store.location):
        keys = list(backend.keys())
        for key in keys:
            if key in needed:
                continue
            try:
                manifest = store.peek(key)
            except StoreError:  # of another version of Ratchet, which may need it
                continue
            _, size, last_used = backend.facts(key, manifest)
            if manifest is None:
                yield GarbageItem(GarbageKind.PART, key, size, last_used)
            else:
                yield GarbageItem(GarbageKind.STAGE, key, size, last_used, manifest.run_id)
        yield from (GarbageItem(GarbageKind.DAMAGED, *facts) for facts in backend.damaged())
        folder = backend.folder
        yield from (GarbageItem(GarbageKind.WORK, *facts) for facts in folder.abandoned())
        if folder is not backend:
            for key in sorted(set(folder.keys()) - set(keys)):
                yield GarbageItem(GarbageKind.COPY, *folder.facts(key, None))


def remove_from_store(
    store: StageStore, item: GarbageItem, is_needed: Callable[[str, float], bool]
) -> bool:
    """Remove an item; return whether it was removed.

    A stage stays if a process holds its lock, or if ``is_needed`` (of its key and the time of its
    last use) is true while no process can find it.
    """
    backend, name = store.backend, item.name
    with store_errors(f"remove {item.kind} {name}", store.location):
        if item.kind is GarbageKind.DAMAGED:
            backend.remove_damaged(name)
            return True
        if item.kind is GarbageKind.WORK:
            backend.folder.clean()
            return name not in {facts.name for facts in backend.folder.abandoned()}
        owner = backend.folder if item.kind is GarbageKind.COPY else backend
        owner.folder.prepare()
        lock = owner.lock(name)
        if not lock.try_acquire():
            return False
        try:
            return owner.discard_unless(name, lambda last_used: is_needed(name, last_used))
        finally:
            lock.release()


class StoreUser(NamedTuple):
    """A runs folder that uses a store; ``inode`` distinguishes folders of the same path."""

    runs: str
    host: str
    inode: int

    @property
    def note(self) -> str:
        """The name of its note."""
        digest = hashlib.sha256(f"{self.host}:{self.runs}:{self.inode}".encode()).hexdigest()
        return f"{digest[:16]}.json"

    @property
    def is_local(self) -> bool:
        """Whether this machine has that very folder at its path.

        A different one may be there: the folder was moved and created again, or its disk is not
        mounted.
        """
        folder = Path(self.runs)
        return folder.is_dir() and folder.stat().st_ino == self.inode


def note_user(store: StageStore, runs: Path) -> None:
    """Record in a store that an existing runs folder uses it."""
    folder = runs.resolve()
    user = StoreUser(str(folder), socket.gethostname(), folder.stat().st_ino)
    text = json.dumps(user._asdict()).encode()
    backend = store.backend
    with store_errors("note a user of the store", store.location):
        if backend.read_note(user.note) != text:
            backend.write_note(user.note, text)


def store_users(store: StageStore) -> list[StoreUser]:
    """List the runs folders that use a store, also those that can't be seen from here."""
    with store_errors("read the users of the store", store.location):
        texts = {name: store.backend.read_note(name) for name in store.backend.note_names()}
    users = []
    for name, text in texts.items():
        if text is None:
            continue
        try:
            users.append(StoreUser(**json.loads(text)))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{store.location}: cannot read its note users/{name} ({error}). Remove it; the"
                " next run in its runs folder writes it again."
            ) from error
    return users


def forget_user(store: StageStore, user: StoreUser) -> None:
    """Remove a runs folder from the users of a store."""
    with store_errors("remove a user of the store", store.location):
        store.backend.write_note(user.note, None)
