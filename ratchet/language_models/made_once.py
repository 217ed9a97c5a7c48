"""Have a service make something exactly once: a job, a deployment, whatever it is called there.

What is asked for is written down before, so that a run that was killed at any point, or was
answered with a time-out, an error or nothing, knows that it may be there, waits until it shows, and
adopts it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ratchet.errors import FineTuneError, FineTuneRefusedError, LanguageModelError
from ratchet.language_models.job_records import Intent, JobRecord, JobRecordFile
from ratchet.language_models.retrying import RetryPolicy, TransientError

_LOGGER = logging.getLogger(__name__)
_LONGEST_PAUSE = 10.0


class Made(Protocol):
    """What a service has made of an intent; ``attempt`` counts what it made of it, from 0."""

    @property
    def id(self) -> str: ...  # noqa: D102 -- see the class
    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def is_lost(self) -> bool: ...  # noqa: D102


_Made = TypeVar("_Made", bound=Made)


@dataclass(frozen=True)
class Order(Generic[_Made]):
    """What is to be made, and how it is looked for and asked for.

    Parameters
    ----------
    what, thing
        For messages: "fine-tuning 'x'", "job".
    file_id
        What it is made of.
    find
        Looks for one that isn't lost, else for the last lost one; given what was asked for before.
        Tries again what may pass.
    make
        Asks for an attempt's, once; raises TransientError for what may pass.
    on_lost
        Told of one that is lost before another is made for it.
    """

    intent: Intent
    what: str
    thing: str
    file_id: str
    find: Callable[[JobRecord | None], Awaitable[_Made | None]]
    make: Callable[[int], Awaitable[_Made]]
    on_lost: Callable[[_Made], None] | None = None


class MadeOnce:
    """Makes what is ordered at one service, once.

    Parameters
    ----------
    label
        The service's name, for messages.
    settle_seconds
        How long something may take to show in the service's lists. So long what may have been made
        is looked for, before it is asked for again.
    """

    def __init__(self, label: str, policy: RetryPolicy, settle_seconds: float) -> None:
        self._label = label
        self._policy = policy
        self._settle_seconds = settle_seconds

    async def ensure(self, order: Order[_Made], records: JobRecordFile) -> _Made:
        """Return what there is of an order; have it made if there is nothing but lost ones.

        Raises
        ------
        FineTuneRefusedError
            If the service refuses; with its reason.
        FineTuneError
            If it failed too often.
        """
        record = records.read()
        found = await self._settle(order, record)
        if found is not None and not found.is_lost:
            records.confirm(record, found.id)
            return found
        if found is not None and order.on_lost is not None:
            order.on_lost(found)
        failure: TransientError | None = None
        for number in range(self._policy.max_attempts):
            attempt = 0 if found is None else found.attempt + 1
            record = JobRecord(order.intent, attempt, order.file_id, time.time())
            try:
                return await self._make(order, record, records)
            except TransientError as error:
                failure = error
            pause = self._policy.delay(number, failure.retry_after, 0.0)
            open_record = record if failure.may_have_acted else None
            found = await self._settle(order, open_record, pause)
            if found is not None and (found.attempt >= attempt or not found.is_lost):
                records.confirm(record, found.id)
                return found
        raise FineTuneError(
            f"{self._label}: {order.what} failed {self._policy.max_attempts} times, the last time"
            f" with: {failure}. Nothing was made twice; run the same command again when the"
            " service answers."
        )

    async def _make(self, order: Order[_Made], record: JobRecord, records: JobRecordFile) -> _Made:
        """Ask once, and write down before and after what is known of it.

        Raises
        ------
        TransientError
            If it may be taken another time, or has been taken already.
        """
        records.write(record)
        try:
            made = await order.make(record.attempt)
        except TransientError as error:
            if not error.may_have_acted:
                records.remove()
            raise
        except LanguageModelError as error:
            records.remove()
            raise FineTuneRefusedError(f"{order.what} was refused: {error}") from None
        records.confirm(record, made.id)
        return made

    async def _settle(
        self, order: Order[_Made], record: JobRecord | None, at_least: float = 0.0
    ) -> _Made | None:
        """Look for what the service may have taken, for as long as it may take to show.

        Without it, the last lost one is returned if there is one. It takes ``at_least`` so many
        seconds to say that there is no other.
        """
        loop = asyncio.get_running_loop()
        open_seconds = 0.0 if record is None else record.open_seconds(self._settle_seconds)
        deadline = loop.time() + max(open_seconds, at_least)
        pause = self._policy.first_delay_seconds
        what = f"{self._label}: a request for {order.what}"
        for look in itertools.count():
            found = await order.find(record)
            if found is not None and not found.is_lost:
                return found
            if found is not None and record is not None and found.attempt >= record.attempt:
                return found
            left = deadline - loop.time()
            if left <= 0:
                break
            if look == 0 and open_seconds > 0:
                _LOGGER.warning(
                    "%s may have been taken; looking for its %s for %.0f s",
                    what,
                    order.thing,
                    open_seconds,
                )
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        if open_seconds > 0:
            _LOGGER.warning("%s: no %s of it has shown; it is taken as not made", what, order.thing)
        return found
