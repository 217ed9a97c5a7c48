"""Exactly-once creation of jobs and deployments at a service.

Each request is recorded before it is sent. A run that was killed, or got a timeout, an error or no
response, therefore finds that the resource may exist, waits until it is listed, and adopts it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ratchet.errors import FineTuneError, FineTuneRefusedError, LanguageModelError
from ratchet.language_models.job_records import Intent, JobRecord, JobRecordFile
from ratchet.language_models.retrying import RetryPolicy, TransientError

_LOGGER = logging.getLogger(__name__)
_LONGEST_PAUSE = 10.0


class CreatedResource(Protocol):
    """A resource created for an intent; ``attempt`` counts the intent's resources from 0."""

    @property
    def id(self) -> str: ...  # noqa: D102 -- see the class
    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def is_lost(self) -> bool: ...  # noqa: D102


_Resource = TypeVar("_Resource", bound=CreatedResource)


@dataclass(frozen=True)
class CreationRequest(Generic[_Resource]):
    """A resource to create, with its lookup and creation functions.

    Parameters
    ----------
    what, thing
        For messages: "fine-tuning 'x'", "job".
    file_id
        The input from which it is created.
    find
        Finds one that is not lost, otherwise the last lost one, given the earlier request. Retries
        transient errors.
    make
        Creates one attempt, once; raises TransientError for transient failures.
    on_lost
        Called with a lost one before its replacement is created.
    """

    intent: Intent
    what: str
    thing: str
    file_id: str
    find: Callable[[JobRecord | None], Awaitable[_Resource | None]]
    make: Callable[[int], Awaitable[_Resource]]
    on_lost: Callable[[_Resource], None] | None = None


class ExactlyOnceCreator:
    """Creates resources at one service, each exactly once.

    Parameters
    ----------
    label
        The service's name, for messages.
    settle_seconds
        The service's listing delay. A resource that may have been created is searched for this long
        before it is requested again.
    """

    def __init__(self, label: str, policy: RetryPolicy, settle_seconds: float) -> None:
        self._label = label
        self._policy = policy
        self._settle_seconds = settle_seconds

    async def ensure(self, order: CreationRequest[_Resource], records: JobRecordFile) -> _Resource:
        """Return the resource of a request; create it if none exists, or only lost ones."""
        record = records.read()
        resource = await self._settle(order, record)
        if resource is not None and not resource.is_lost:
            records.confirm(record, resource.id)
            return resource
        if resource is not None and order.on_lost is not None:
            order.on_lost(resource)
        failure: TransientError | None = None
        for number in range(self._policy.max_attempts):
            attempt = 0 if resource is None else resource.attempt + 1
            record = JobRecord.now(order.intent, attempt, order.file_id)
            try:
                return await self._make(order, record, records)
            except TransientError as error:
                failure = error
            pause = self._policy.delay(number, failure.retry_after, 0.0)
            open_record = record if failure.may_have_acted else None
            resource = await self._settle(order, open_record, pause)
            if resource is not None and (resource.attempt >= attempt or not resource.is_lost):
                records.confirm(record, resource.id)
                return resource
        raise FineTuneError(
            f"{self._label}: {order.what} failed {self._policy.max_attempts} times, the last time"
            f" with: {failure}. No duplicate was created; run the same command again when the"
            " service responds."
        )

    async def _make(
        self, order: CreationRequest[_Resource], record: JobRecord, records: JobRecordFile
    ) -> _Resource:
        """Send one creation request, recorded before and after."""
        records.write(record)
        try:
            resource = await order.make(record.attempt)
        except TransientError as error:
            if not error.may_have_acted:
                records.remove()
            raise
        except LanguageModelError as error:
            records.remove()
            raise FineTuneRefusedError(f"{order.what} was refused: {error}") from None
        records.confirm(record, resource.id)
        return resource

    async def _settle(
        self, order: CreationRequest[_Resource], record: JobRecord | None, at_least: float = 0.0
    ) -> _Resource | None:
        """Search for the resource until the service's listing delay has passed.

        If it is not found, returns the last lost one, if any. ``at_least``: minimal seconds of the
        search.
        """
        loop = asyncio.get_running_loop()
        open_seconds = 0.0 if record is None else record.open_seconds(self._settle_seconds)
        deadline = loop.time() + max(open_seconds, at_least)
        pause = self._policy.first_delay_seconds
        what = f"{self._label}: a request for {order.what}"
        for look in itertools.count():
            resource = await order.find(record)
            if resource is not None and not resource.is_lost:
                return resource
            if resource is not None and record is not None and resource.attempt >= record.attempt:
                return resource
            left = deadline - loop.time()
            if left <= 0:
                break
            if look == 0 and open_seconds > 0:
                _LOGGER.warning(
                    "%s may have been accepted; searching for its %s for %.0f s",
                    what,
                    order.thing,
                    open_seconds,
                )
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        if open_seconds > 0:
            _LOGGER.warning("%s: its %s was not listed; treated as not created", what, order.thing)
        return resource
