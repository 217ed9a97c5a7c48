"""Exclusive locks that a killed process releases: of a file, and with a lease at a URL.

:class:`FileLock` locks the open file, not its name: the kernel releases it when the process dies,
and a forked child never holds it. It excludes threads and processes of one machine, and users of
network folders that support ``flock``; elsewhere it fails. :class:`LeasedLock` excludes other
machines too. Its local lock saves the processes of one machine requests to the store, and shows
immediately that a holder on this machine has died.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import filelock

from ratchet.store.leases import Lease, LeaseStatus

_LOGGER = logging.getLogger(__name__)
_BUSY = (errno.EAGAIN, errno.EACCES)
_POLL_SECONDS = 0.05
_SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_MIN_POLLS = 12  # during the time of a lease


def user_cache() -> Path:
    """Return Ratchet's folder in ``$XDG_CACHE_HOME`` (``~/.cache``)."""
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(cache) / "ratchet"


class FileLock:
    """Exclusive lock named by a file, which exists only while a process holds or awaits it.

    The file's folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = filelock.FileLock(
            path,
            thread_local=False,  # a stage may end in a different thread
            fallback_to_soft=False,  # a lock that is a file's existence outlives a killed holder
            poll_interval=_POLL_SECONDS,
            on_acquired=_write_holder,
        )

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process (not in a forked child)."""
        return self._lock.is_locked

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        return self._acquire(0.0, None)

    def acquire(
        self,
        *,
        wait_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> bool:
        """Acquire the lock, waiting while it is held.

        Parameters
        ----------
        wait_seconds
            The longest wait; unlimited when None.
        cancelled
            Ends the wait when set.
        on_wait
            Called once with a description of the holder, if the lock is held.

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
        """Release the lock and remove its file; no effect in a forked child."""
        if not self.held:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # while it is held: a waiting process notices, opens the new file
        self._lock.release()

    def holder(self) -> str:
        """Describe the holder, if the lock's file names it."""
        process = self.holding_process()
        return "another process" if process is None else f"process {process[0]} on {process[1]}"

    def holding_process(self) -> tuple[int, str] | None:
        """Return (process id, host) from the lock's file; None if it contains none."""
        try:
            content = json.loads(self.path.read_bytes())
            return int(content["pid"]), str(content["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_free(self) -> bool:
        """Return whether no process holds the lock.

        Tests with a shared lock, so that two concurrent tests don't see each other as the holder,
        and writes nothing: the folder may belong to another user.
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


class LeasedLock:
    """Exclusive lock on a stage at a URL: a local lock and a lease.

    While it is held, so is the lease, unless a finished stage has replaced it. ``leases`` contains
    the lease by its key for that time, for code that changes the stage.
    """

    def __init__(self, local: FileLock, lease: Lease, key: str, leases: dict[str, Lease]) -> None:
        self.lease = lease
        self._local, self._key, self._leases = local, key, leases

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process (not in a forked child)."""
        return self._local.held

    def holder(self) -> str:
        """Describe the holder, if known."""
        other = self.lease.other
        return self._local.holder() if other is None else other.holder

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        return self.acquire(wait_seconds=0.0)

    def acquire(
        self,
        *,
        wait_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> bool:
        """Acquire the lock, waiting while it is held; as :meth:`FileLock.acquire`."""
        start = time.monotonic()
        if not self._local.acquire(wait_seconds=wait_seconds, cancelled=cancelled, on_wait=on_wait):
            return False
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            self._leases[self._key] = self.lease
            left = None
            if wait_seconds is not None:
                left = max(wait_seconds - (time.monotonic() - start), 0.0)
            status = wait_for(self.lease, wait_seconds=left, cancelled=cancelled, on_wait=on_wait)
            if status is LeaseStatus.HELD:
                return False
            undo.pop_all()
        return True

    def release(self) -> None:
        """Release the lease, then the local lock; no effect in a forked child."""
        if not self.held:
            return
        try:
            self.lease.release()
        finally:
            self._leases.pop(self._key, None)
            self._local.release()


def wait_for(
    lease: Lease,
    *,
    wait_seconds: float | None = None,
    cancelled: threading.Event | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> LeaseStatus:
    """Wait until a lease is taken or its stage finished; ``HELD`` if the wait ends earlier."""
    end = None if wait_seconds is None else time.monotonic() + wait_seconds
    pause, is_reported = _SHORTEST_PAUSE, False
    stop = cancelled or threading.Event()
    status = lease.take()
    while status is LeaseStatus.HELD:
        left = None if end is None else end - time.monotonic()
        if stop.is_set() or (left is not None and left <= 0):
            break
        if lease.other is not None and not is_reported:
            is_reported = True
            _LOGGER.info(
                "waiting for %s; if it stops, this process takes over %g seconds later",
                lease.other.holder,
                lease.other.seconds,
            )
            if on_wait is not None:
                on_wait(lease.other.holder)
        stop.wait(pause if left is None else min(pause, left))
        longest = min(_LONGEST_PAUSE, lease.other.seconds / _MIN_POLLS) if lease.other else pause
        pause = min(pause * 1.5, max(longest, _SHORTEST_PAUSE))
        status = lease.take(read_first=True)
    return status


def _write_holder(descriptor: int) -> None:
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    with contextlib.suppress(OSError):  # for messages only; a full disk does not matter
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
