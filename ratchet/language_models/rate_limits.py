"""Rate limits: requests and tokens per minute of an endpoint.

One limiter is shared by all agents of an endpoint, across threads and event loops.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Grant:
    """A permission to use ``amount`` from time ``at`` (seconds of a monotonic clock)."""

    at: float
    amount: float


class SlidingWindow:
    """Grants at most ``limit`` in any window of ``seconds``, first come, first served.

    A request above ``limit`` is granted when the window is empty. Thread-safe.
    """

    def __init__(
        self, limit: float, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._grants: deque[Grant] = deque()
        self._used = 0.0
        self._lock = threading.Lock()

    def reserve(self, amount: float) -> Grant:
        """Reserve the next free slot; its time may be in the future: wait for it."""
        with self._lock:
            at = max(self._clock(), self._grants[-1].at if self._grants else 0.0)
            while self._grants:
                oldest = self._grants[0]
                left = oldest.at + self._seconds
                if left > at:
                    if self._used + amount <= self._limit:
                        break
                    at = left
                self._used -= oldest.amount
                self._grants.popleft()
            grant = Grant(at, amount)
            self._grants.append(grant)
            self._used += amount
            return grant

    def correct(self, grant: Grant, amount: float) -> None:
        """Record the actual usage, for later requests."""
        with self._lock:
            if any(known is grant for known in self._grants):
                self._used += amount - grant.amount
                grant.amount = amount

    def seconds_until(self, grant: Grant) -> float:
        """Return the time to wait for a grant."""
        return max(0.0, grant.at - self._clock())


class RateLimiter:
    """Limits of one endpoint per window of ``window_seconds``; ``None``: no limit."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        window_seconds: float = 60.0,
    ) -> None:
        self._requests = _window(requests_per_minute, window_seconds)
        self._tokens = _window(tokens_per_minute, window_seconds)

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are limited."""
        return self._tokens is not None

    async def acquire(self, estimated_tokens: int) -> Grant | None:
        """Wait until a request of about this many tokens may be sent.

        Returns the argument of :meth:`settle`; None if tokens are not limited.
        """
        grant = self._tokens.reserve(estimated_tokens) if self._tokens else None
        wait = self._tokens.seconds_until(grant) if self._tokens and grant else 0.0
        if self._requests:
            request = self._requests.reserve(1)
            wait = max(wait, self._requests.seconds_until(request))
        if wait > 0:
            await asyncio.sleep(wait)
        return grant

    def settle(self, grant: Grant | None, tokens: int) -> None:
        """Record the tokens that a request used."""
        if self._tokens and grant is not None:
            self._tokens.correct(grant, tokens)


def _window(limit: int | None, seconds: float) -> SlidingWindow | None:
    return SlidingWindow(limit, seconds) if limit is not None else None
