"""Which runs folders use a store, so that nobody removes what their runs need.

A store has a small note of each. One whose folder cannot be seen from here (it was moved, deleted,
or lies on another machine) says that there may be runs which nobody has asked.
"""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ratchet.errors import DataError
from ratchet.store.failures import store_errors

if TYPE_CHECKING:
    from ratchet.store.store import StageStore


EARLIER = "earlier"
"""Stands for the runs folders of a store that was used before it took note of them."""


class StoreUser(NamedTuple):
    """A runs folder that uses a store, on which host; ``inode`` tells it from its namesakes."""

    runs: str
    host: str
    inode: int

    @property
    def note(self) -> str:
        """The name of its note."""
        place = hashlib.sha256(f"{self.host}:{self.runs}:{self.inode}".encode()).hexdigest()
        return f"{place[:16]}.json"

    @property
    def is_here(self) -> bool:
        """Whether that very folder is there under its path on this machine.

        Another one may be: the folder was moved and made anew, or its disk is not mounted.
        """
        folder = Path(self.runs)
        return self.runs != EARLIER and folder.is_dir() and folder.stat().st_ino == self.inode


def note_user(store: StageStore, runs: Path) -> None:
    """Have a store know a runs folder, which must be there."""
    folder = runs.resolve()
    user = StoreUser(str(folder), socket.gethostname(), folder.stat().st_ino)
    text = json.dumps(user._asdict()).encode()
    with store_errors("note who uses the store", store.place):
        if store.backend.read_note(user.note) == text:
            return
        if not store.backend.note_names() and next(iter(store.backend.keys()), None) is not None:
            earlier = StoreUser(EARLIER, user.host, -1)
            store.backend.write_note(earlier.note, json.dumps(earlier._asdict()).encode())
        store.backend.write_note(user.note, text)


def store_users(store: StageStore) -> list[StoreUser]:
    """List the runs folders that use a store, also those that cannot be seen from here."""
    with store_errors("read who uses the store", store.place):
        texts = {name: store.backend.read_note(name) for name in store.backend.note_names()}
    return [_read(text, name, store) for name, text in texts.items() if text is not None]


def _read(text: bytes, name: str, store: StageStore) -> StoreUser:
    try:
        return StoreUser(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{store.place}: its note users/{name} is not one that this version of Ratchet reads"
            f" ({error}). Remove it; the next run of the folder it stood for writes it again."
        ) from error


def forget_user(store: StageStore, user: StoreUser) -> None:
    """Remove a runs folder from those that use a store."""
    with store_errors("forget who uses the store", store.place):
        store.backend.write_note(user.note, None)
