"""A lock that holds across machines: the local one, and then a lease in the store.

The local lock keeps the processes of one machine apart, who then cost the store no request, and
tells at once that a holder on this machine has died.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from ratchet.store.leases import Lease, Standing
from ratchet.store.locks import FileLock

_LOGGER = logging.getLogger(__name__)
_SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_LOOKS = 12  # in the time of a lease, at least


class LeasedLock:
    """An exclusive lock on what lies under a key at a URL.

    Held, it has the lease too, unless a finished stage stands in its place. ``leases`` has the
    lease by its key meanwhile, for whoever changes what lies there.
    """

    def __init__(self, local: FileLock, lease: Lease, key: str, leases: dict[str, Lease]) -> None:
        self.lease = lease
        self._local, self._key, self._leases = local, key, leases

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, in this process (not in a forked child)."""
        return self._local.held

    def holder(self) -> str:
        """Return who holds the lock, as far as is known."""
        other = self.lease.other
        return self._local.holder() if other is None else other.holder

    def try_acquire(self) -> bool:
        """Take the lock if it is free; say whether it was."""
        return self.acquire(wait_seconds=0.0)

    def acquire(
        self,
        *,
        wait_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> bool:
        """Take the lock, waiting for it if it is held; as :meth:`FileLock.acquire`."""
        begin = time.monotonic()
        if not self._local.acquire(wait_seconds=wait_seconds, cancelled=cancelled, on_wait=on_wait):
            return False
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            self._leases[self._key] = self.lease
            left = None
            if wait_seconds is not None:
                left = max(wait_seconds - (time.monotonic() - begin), 0.0)
            standing = wait_for(self.lease, wait_seconds=left, cancelled=cancelled, on_wait=on_wait)
            if standing is Standing.HELD:
                return False
            undo.pop_all()
        return True

    def release(self) -> None:
        """Release the lease, then the local lock. Nothing happens in a forked child."""
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
) -> Standing:
    """Take a lease, or see its stage finished; ``HELD`` after ``wait_seconds`` or ``cancelled``."""
    end = None if wait_seconds is None else time.monotonic() + wait_seconds
    pause, told = _SHORTEST_PAUSE, False
    stop = cancelled or threading.Event()
    standing = lease.take()
    while standing is Standing.HELD:
        left = None if end is None else end - time.monotonic()
        if stop.is_set() or (left is not None and left <= 0):
            break
        if lease.other is not None and not told:
            told = True
            _LOGGER.info(
                "waiting for %s; should it stop, this process takes over %g seconds later",
                lease.other.holder,
                lease.other.seconds,
            )
            if on_wait is not None:
                on_wait(lease.other.holder)
        stop.wait(pause if left is None else min(pause, left))
        longest = min(_LONGEST_PAUSE, lease.other.seconds / _LOOKS) if lease.other else pause
        pause = min(pause * 1.5, max(longest, _SHORTEST_PAUSE))
        standing = lease.take(look_first=True)
    return standing
