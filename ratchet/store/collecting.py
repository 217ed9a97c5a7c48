"""What a store could do without: stages that nobody needs, and what was left or set aside.

Which stages are needed is said by whoever knows the runs (:mod:`flows.runs.references`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ratchet.errors import StoreError
from ratchet.store.failures import store_errors

if TYPE_CHECKING:
    from ratchet.store.store import StageStore


class LeftoverKind(StrEnum):
    """What can be removed."""

    STAGE = "stage"
    """A finished stage that no run needs."""
    PART = "part of a stage"
    """What an upload or a removal that was cut off has left."""
    COPY = "copy"
    """The local copy of a stage that is no longer at the store's URL."""
    DAMAGED = "damaged stage"
    """What no longer matched its manifest, and was set aside."""
    WORK = "unfinished work"
    """The work folder of a killed process."""
    JOURNAL = "journal"
    """Answers that were kept until their stage was stored."""
    CHECKPOINT = "checkpoint"
    """A trainer's state that was kept until its stage was stored."""
    TEMPORARY = "temporary file"
    """What a killed writer has left in a runs folder."""


@dataclass(frozen=True)
class Leftover:
    """One thing that could be removed; ``name`` is a key, a name in the store, or a path."""

    kind: LeftoverKind
    name: str
    size: int
    last_used: float
    run_id: str | None = None


def unneeded_in_store(store: StageStore, needed: frozenset[str]) -> Iterator[Leftover]:
    """List what a store could do without; changes nothing."""
    backend = store.backend
    with store_errors("list the stages", store.place):
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
                yield Leftover(LeftoverKind.PART, key, size, last_used)
            else:
                yield Leftover(LeftoverKind.STAGE, key, size, last_used, manifest.run_id)
        yield from (Leftover(LeftoverKind.DAMAGED, *facts) for facts in backend.damaged())
        folder = backend.folder
        yield from (Leftover(LeftoverKind.WORK, *facts) for facts in folder.abandoned())
        if folder is not backend:
            for key in sorted(set(folder.keys()) - set(keys)):
                yield Leftover(LeftoverKind.COPY, *folder.facts(key, None))


def remove_from_store(
    store: StageStore, leftover: Leftover, wanted: Callable[[str, float], bool]
) -> bool:
    """Remove something; say whether it was removed.

    A stage stays if somebody works on it, or if ``wanted`` (of its key and the time of its last
    use) says so when it is out of everybody's way.

    Raises
    ------
    StoreError
        If the store cannot be written.
    """
    backend, name = store.backend, leftover.name
    with store_errors(f"remove {leftover.kind} {name}", store.place):
        if leftover.kind is LeftoverKind.DAMAGED:
            backend.remove_damaged(name)
            return True
        if leftover.kind is LeftoverKind.WORK:
            backend.folder.clean()
            return name not in {facts.name for facts in backend.folder.abandoned()}
        place = backend.folder if leftover.kind is LeftoverKind.COPY else backend
        place.folder.prepare()
        lock = place.lock(name)
        if not lock.try_acquire():
            return False
        try:
            return place.discard_unless(name, lambda last_used: wanted(name, last_used))
        finally:
            lock.release()
