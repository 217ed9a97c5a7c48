"""``RunLock``: marks a run as running by a lock that is released on process death.

Several processes may run the same run, so each has its own lock in the run's folder.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import NamedTuple

from ratchet.store.locks import FileLock

_FOLDER = ".running"


class RunOwner(NamedTuple):
    """A process that runs a run; None if it has not written its identity yet."""

    pid: int | None
    host: str | None


class RunLock:
    """Lock held from a run's start to its end.

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
            if lock.try_acquire():  # its owner was killed
                lock.release()
        self._lock = FileLock(folder / f"{secrets.token_hex(8)}.lock")
        self._lock.acquire()  # waits only for processes that check the lock

    def release(self) -> None:
        """Release the lock; idempotent."""
        self._lock.release()


def runners(path: Path) -> list[RunOwner]:
    """List the processes that run the run, or the sweep, in a folder now."""
    owners = []
    for file in sorted((path / _FOLDER).glob("*.lock")):
        lock = FileLock(file)
        with contextlib.suppress(FileNotFoundError):
            if not lock.is_free():
                owners.append(RunOwner(*(lock.holding_process() or (None, None))))
    return owners
