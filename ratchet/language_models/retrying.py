"""Retries of failed calls, with delays."""

from __future__ import annotations

import email.utils
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from ratchet.errors import LanguageModelError

_LOGGER = logging.getLogger(__name__)
_RETRIED_STATUSES = frozenset({408, 409, 429})
_PERMANENT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_Result = TypeVar("_Result")
_WARNED_FROM = 5
"""Number of the attempt from which failures are shown in the terminal, once per outage."""
_WARNED: set[str] = set()
_JITTER = random.Random()  # never part of a result, so it needs no seed


class TransientError(LanguageModelError):
    """A call failed in a way that may pass: timeout, lost connection, busy service.

    ``retry_after``: the wait in seconds that the service requested, if any; ``may_have_acted``:
    False if the request certainly had no effect.
    """

    def __init__(
        self, message: str, retry_after: float | None = None, *, may_have_acted: bool = True
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.may_have_acted = may_have_acted


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts and their delays.

    The delay doubles from ``first_delay_seconds`` to ``max_delay_seconds``, times a random factor
    in [0.5, 1]. A service's Retry-After is respected up to ``max_retry_after_seconds``; above that,
    the call fails.
    """

    max_attempts: int = 10
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 60.0
    max_retry_after_seconds: float = 600.0

    def delay(self, attempt: int, retry_after: float | None, jitter: float) -> float:
        """Return the seconds to wait after attempt 0, 1, …; ``jitter`` is in [0, 1).

        ``retry_after`` is the wait that the service requested.
        """
        backoff = min(self.max_delay_seconds, self.first_delay_seconds * 2.0**attempt)
        backoff *= 0.5 + 0.5 * jitter
        if retry_after is None:
            return backoff
        return max(backoff, retry_after + 0.1 * jitter * min(retry_after, 10.0))


async def with_retries(
    make: Callable[[], Awaitable[_Result]], policy: RetryPolicy, what: str
) -> _Result:
    """Retry a call until it succeeds, fails permanently, or has failed too often.

    ``make`` makes one attempt, and raises :class:`TransientError` for transient failures.
    """

    def is_over(state: RetryCallState) -> bool:
        requested = _failure(state).retry_after or 0.0
        return (
            state.attempt_number >= policy.max_attempts
            or requested > policy.max_retry_after_seconds
        )

    def delay(state: RetryCallState) -> float:
        retry_after = _failure(state).retry_after
        return policy.delay(state.attempt_number - 1, retry_after, _JITTER.random())

    def give_up(state: RetryCallState) -> NoReturn:
        failure = _failure(state)
        if state.attempt_number >= policy.max_attempts:
            raise LanguageModelError(
                f"{what}: failed {state.attempt_number} times, the last time with: {failure}."
                " Finished calls are cached; when the service responds again, run the same command."
            )
        raise LanguageModelError(
            f"{what}: {failure}. The service requests a wait of {failure.retry_after:.0f} s,"
            f" expected at most {policy.max_retry_after_seconds:.0f} s. Run the same command later."
        )

    def log(state: RetryCallState) -> None:
        number, pause = state.attempt_number + 1, state.upcoming_sleep
        level = logging.WARNING if number >= _WARNED_FROM and what not in _WARNED else logging.INFO
        if level == logging.WARNING:
            _WARNED.add(what)
        _LOGGER.log(level, "%s: %s; attempt %d in %.1f s", what, _failure(state), number, pause)

    async def attempt() -> _Result:  # tenacity awaits only async functions
        return await make()

    attempts = AsyncRetrying(
        retry=retry_if_exception_type(TransientError),
        stop=is_over,
        wait=delay,
        before_sleep=log,
        retry_error_callback=give_up,
    )
    try:
        return await attempts(attempt)
    finally:
        _WARNED.discard(what)


def _failure(state: RetryCallState) -> TransientError:
    failure = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(failure, TransientError):
        raise TypeError(f"got {failure!r}, expected a TransientError")
    return failure


def is_transient(status: int, code: str | None, headers: Mapping[str, str]) -> bool:
    """Return whether an error status may differ on a retry."""
    wish = headers.get("x-should-retry")
    if wish in ("true", "false"):
        return wish == "true"
    if code in _PERMANENT_CODES:
        return False
    return status in _RETRIED_STATUSES or status >= 500


def retry_after_seconds(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Read the requested wait from lower-case headers: milliseconds, seconds, or a date.

    ``now`` is in seconds since 1970; by default the service's time in the header ``date``, else
    the current time.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    until = _date(text)
    if until is None:
        return None
    if now is None:
        sent = _date(headers.get("date"))
        now = time.time() if sent is None else sent
    return max(0.0, until - now)


def _date(text: str | None) -> float | None:
    """Return a header's date in seconds since 1970; None if it is missing or invalid."""
    date = None if text is None else email.utils.parsedate_tz(text)
    return None if date is None else float(email.utils.mktime_tz(date))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < float("inf") else None
