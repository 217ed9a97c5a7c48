"""Locks that a killed holder gives back: those of filelock, with what a store needs besides.

The lock is the open file's, not the file's existence: the kernel frees it when the holder dies,
however it dies, and a forked child never keeps it. It holds among the threads and processes of one
machine, and over network folders whose ``flock`` does; on one without ``flock`` it fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import filelock

_BUSY = (errno.EAGAIN, errno.EACCES)
_POLL_SECONDS = 0.05


class FileLock:
    """An exclusive lock named by a file, which is there only while someone holds or wants it.

    The file's folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = filelock.FileLock(
            path,
            thread_local=False,  # a stage may end in another thread than it began in
            fallback_to_soft=False,  # a lock that is a file's existence outlives who is killed
            poll_interval=_POLL_SECONDS,
            on_acquired=_write_holder,
        )

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process (not in a forked child)."""
        return self._lock.is_locked

    def try_acquire(self) -> bool:
        """Take the lock if it is free; say whether it was."""
        return self._acquire(0.0, None)

    def acquire(
        self,
        *,
        wait_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> bool:
        """Take the lock, waiting for it if it is held.

        Parameters
        ----------
        wait_seconds
            How long to wait at most; for ever when None.
        cancelled
            Ends the waiting when set.
        on_wait
            Called once, with words on who holds the lock, if there is waiting to do.

        Returns
        -------
        bool
            Whether the lock is held now; False after ``wait_seconds`` or ``cancelled``.
        """
        if self.try_acquire():
            return True
        if on_wait is not None:
            on_wait(self.holder())
        return self._acquire(-1.0 if wait_seconds is None else wait_seconds, cancelled)

    def _acquire(self, seconds: float, cancelled: threading.Event | None) -> bool:
        try:
            self._lock.acquire(seconds, cancel_check=cancelled.is_set if cancelled else None)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock and remove its file. Nothing happens in a forked child."""
        if not self.held:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # while it is held: who waits notices and opens the new file
        self._lock.release()

    def holder(self) -> str:
        """Return who holds the lock, as far as its file tells."""
        process = self.holding_process()
        return "another process" if process is None else f"process {process[0]} on {process[1]}"

    def holding_process(self) -> tuple[int, str] | None:
        """Return (process id, host) that the lock's file names; None where it names none."""
        try:
            content = json.loads(self.path.read_bytes())
            return int(content["pid"]), str(content["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_free(self) -> bool:
        """Return whether nobody holds the lock.

        A shared lock asks, so that two who look at once don't take each other for the holder, and
        nothing is written: the folder may be another user's.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        finally:
            os.close(descriptor)
        return True


def _write_holder(descriptor: int) -> None:
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    with contextlib.suppress(OSError):  # only words for who waits; a full disk does not matter
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
