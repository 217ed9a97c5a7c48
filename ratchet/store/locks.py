"""Locks that a killed holder gives back: ``flock`` on an open file.

The lock is the open file's, not the file's existence: the kernel frees it when the holder dies,
however it dies. Each lock opens the file anew, so that threads of one process exclude each other
too. It holds among the processes of one machine, and over network folders whose ``flock`` does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

_BUSY = (errno.EAGAIN, errno.EACCES)
_FIRST_WAIT, _LONGEST_WAIT = 0.002, 0.25  # seconds between two tries


class FileLock:
    """An exclusive lock named by a file, which is there only while someone holds or wants it.

    The file's folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._process = 0

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process (not in a forked child)."""
        return self._descriptor is not None and self._process == os.getpid()

    def try_acquire(self) -> bool:
        """Take the lock if it is free; say whether it was."""
        with _FORKING:  # no fork between opening the file and noting its descriptor
            descriptor = self._open_locked()
            if descriptor is None:
                return False
            _HELD.add(descriptor)
        self._descriptor, self._process = descriptor, os.getpid()
        _write_holder(descriptor)
        return True

    def _open_locked(self) -> int | None:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in _BUSY:
                    return None
                raise
            if self._is_current(descriptor):
                return descriptor
            os.close(descriptor)  # the holder before us removed the file: take the new one

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
        stop = cancelled if cancelled is not None else threading.Event()
        deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
        pause = _FIRST_WAIT
        while not stop.wait(pause):
            if self.try_acquire():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            pause = min(pause * 1.5, _LONGEST_WAIT)
        return False

    def release(self) -> None:
        """Release the lock and remove its file. Nothing happens in a forked child."""
        held, descriptor, self._descriptor = self.held, self._descriptor, None
        if not held or descriptor is None:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # while it is held: who waits notices and opens the new file
        with _FORKING:
            _HELD.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

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
        """Return whether nobody holds the lock, without taking it from who is about to."""
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

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False


_HELD: set[int] = set()
_FORKING = threading.Lock()


def _close_in_child() -> None:
    """Let go of the parent's locks after a fork, or the child would hold them past its death."""
    for descriptor in _HELD:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _HELD.clear()
    _FORKING.release()


os.register_at_fork(
    before=_FORKING.acquire, after_in_parent=_FORKING.release, after_in_child=_close_in_child
)


def _write_holder(descriptor: int) -> None:
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    with contextlib.suppress(OSError):  # only words for who waits; a full disk does not matter
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
