"""``Presence``: that a process runs a run, told by locks that die with it.

Several processes may run the same run, so each has a lock of its own in the run's folder.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import NamedTuple

from ratchet.store.locks import FileLock

_FOLDER = ".running"


class Runner(NamedTuple):
    """A process that runs a run; None where it has not said yet who it is."""

    pid: int | None
    host: str | None


class Presence:
    """Held from a run's begin to its end, however it ends.

    Parameters
    ----------
    path
        The run's folder, or a sweep's.
    """

    def __init__(self, path: Path) -> None:
        folder = path / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.lock"):
            lock = FileLock(left)
            if lock.try_acquire():  # its holder was killed
                lock.release()
        self._lock = FileLock(folder / f"{secrets.token_hex(8)}.lock")
        self._lock.acquire()  # waits only for who looks whether it is held

    def release(self) -> None:
        """Say that the run has ended; a second time changes nothing."""
        self._lock.release()


def runners(path: Path) -> list[Runner]:
    """List the processes that run the run, or the sweep, in a folder now."""
    found = []
    for file in sorted((path / _FOLDER).glob("*.lock")):
        lock = FileLock(file)
        with contextlib.suppress(FileNotFoundError):
            if not lock.is_free():
                found.append(Runner(*(lock.holding_process() or (None, None))))
    return found
