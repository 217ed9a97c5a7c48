"""Fine-tune jobs at a service, each made exactly once whatever happens in between.

An intent is looked up before a job is made, and again after every answer that leaves it open
whether the service has taken the job: by the intent's digest in the job's metadata, and by the
training file, whose name has the digest too. What is asked for is written down before, so that
a run that was killed at any point, or was answered with a time-out, an error or nothing, knows
that there may be a job, waits until it shows, and adopts it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import openai

from ratchet.errors import (
    FineTuneError,
    FineTuneRefusedError,
    LanguageModelError,
    StalledJobError,
)
from ratchet.language_models.connection import Connection
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob, job_status
from ratchet.language_models.job_records import JobRecord, JobRecordFile
from ratchet.language_models.retrying import RetryPolicy, TransientError, with_retries
from ratchet.store.locks import FileLock

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.fine_tuning import FineTuningJob

SETTLE_SECONDS = 120.0
STALL_SECONDS = 600.0

_LOGGER = logging.getLogger(__name__)
_PAGE = 100
_LAST_EVENTS = 5
_STEP = re.compile(r"Step (\d+)/(\d+)\b")
_LONGEST_PAUSE = 10.0
_Result = TypeVar("_Result")


class FineTuneClient:
    """Makes and watches an endpoint's fine-tune jobs.

    Parameters
    ----------
    folder
        Where processes of this machine agree on who looks up and makes a job, and where it is
        written down what was asked for. Without one, a killed process leaves nothing to know it by.
    settle_seconds
        How long a job may take to show in the service's list. So long one that may have been made
        is looked for, before another attempt (with the same Idempotency-Key) is made to create it.
        Ratchet's own service lists a job at once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        folder: Path | None = None,
        policy: RetryPolicy | None = None,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self.endpoint = endpoint
        self._folder = folder
        self._policy = policy or RetryPolicy()
        self._settle_seconds = 0.0 if endpoint.is_embedded else settle_seconds
        self._connection = Connection(endpoint)

    def __repr__(self) -> str:
        return f"FineTuneClient({self.endpoint!r})"

    async def ensure_job(
        self,
        intent: FineTuneIntent,
        file_bytes: bytes,
        on_lost: Callable[[FineTuneJob], None] | None = None,
    ) -> FineTuneJob:
        """Return the intent's job on the training file, made if there is none that hasn't failed.

        ``on_lost`` is told of a job that failed or was cancelled before another is made for it.

        Raises
        ------
        FineTuneError
            If the service refuses the file or the job; with its reason.
        LanguageModelError
            If it can't be reached.
        """
        async with self._only_one(intent):
            records = JobRecordFile(self._folder, self.endpoint.label, intent)
            record = records.read()
            files = await self._ensure_file(intent, file_bytes)
            found = await self._settle(intent, files, record)
            if found is not None and not found.is_lost:
                records.confirm(record, found.id)
                return found
            if found is not None and on_lost is not None:
                on_lost(found)
            failure: TransientError | None = None
            for number in range(self._policy.max_attempts):
                attempt = 0 if found is None else found.attempt + 1
                record = JobRecord(intent, attempt, files[0], time.time())
                try:
                    return await self._create(record, records)
                except TransientError as error:
                    failure = error
                pause = self._policy.delay(number, failure.retry_after, 0.0)
                open_record = record if failure.may_have_acted else None
                found = await self._settle(intent, files, open_record, pause)
                if found is not None and (found.attempt >= attempt or not found.is_lost):
                    records.confirm(record, found.id)
                    return found
        raise FineTuneError(
            f"{self.endpoint.label}: creating a fine-tune job of {intent.model!r} failed"
            f" {self._policy.max_attempts} times, the last time with: {failure}. Nothing was made"
            " twice; run the same command again when the service answers."
        )

    async def status(self, job_id: str) -> FineTuneJob:
        """Ask how a job is."""

        async def ask(client: AsyncOpenAI) -> FineTuneJob:
            return _read_job(await client.fine_tuning.jobs.retrieve(job_id))

        return await self._call(ask, f"fine-tune job {job_id}")

    async def wait(
        self,
        job_ids: Iterable[str],
        poll_seconds: float = 5.0,
        poll_seconds_max: float = 60.0,
        stall_seconds: float = STALL_SECONDS,
        *,
        on_look: Callable[[FineTuneJob], None] | None = None,
    ) -> dict[str, FineTuneJob]:
        """Wait until all jobs are final, all at once.

        The pause between two looks grows by half from ``poll_seconds`` to ``poll_seconds_max``.
        ``on_look`` is told of what each shows, with the steps that a running job has done.

        Raises
        ------
        StalledJobError
            If a job has not changed for ``stall_seconds`` and the service says that something is
            wrong with it. Where services don't speak of their health, queues may be long.
        """

        async def one(job_id: str) -> FineTuneJob:
            pause, seen, since = poll_seconds, None, time.monotonic()
            while not (job := await self.status(job_id)).is_final:
                if on_look is not None:
                    job = replace(job, steps=await self._steps(job))
                    on_look(job)
                if job != seen:
                    seen, since = job, time.monotonic()
                elif time.monotonic() - since >= stall_seconds:
                    await self._check_health(job, stall_seconds)
                    since = time.monotonic()
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, max(poll_seconds, poll_seconds_max))
            if on_look is not None:
                on_look(job)
            return job

        ids = list(dict.fromkeys(job_ids))
        return dict(zip(ids, await asyncio.gather(*map(one, ids)), strict=True))

    async def _steps(self, job: FineTuneJob) -> tuple[int, int] | None:
        """Return how many steps a running job has done and has, if its events say so.

        Nothing depends on it, so that a service without events is no failure.
        """
        if job.status != "running":
            return None
        client = await self._connection.client()
        try:
            events = (await client.fine_tuning.jobs.list_events(job.id, limit=_LAST_EVENTS)).data
        except openai.OpenAIError:
            return None
        steps = [found for event in events if (found := _STEP.match(event.message or ""))]
        return max(((int(found[1]), int(found[2])) for found in steps), default=None)

    async def _check_health(self, job: FineTuneJob, unchanged_seconds: float) -> None:
        what = f"fine-tune job {job.id} at {self.endpoint.label}"
        health = await self._connection.health()
        if health.get("status") == "degraded":
            reason = self._connection.redact(str(health.get("reason") or "it gives no reason"))
            raise StalledJobError(
                f"{what}: still {job.status}, unchanged for {unchanged_seconds:.0f} s, and the"
                f" service says that it is degraded: {reason}. Nothing is lost: mend that there,"
                " then run the same command again; it goes on waiting for the same job."
            )
        _LOGGER.info("%s: still %s after %.0f s", what, job.status, unchanged_seconds)

    async def _ensure_file(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """List ids of the uploaded files that are the intent's; upload it if there is none."""

        async def find_or_upload(client: AsyncOpenAI) -> list[str]:
            known = [
                file.id
                async for file in _each(client.files.list(purpose="fine-tune", limit=_PAGE))
                if file.filename == intent.file_name and file.status != "error"
            ]
            if known:
                return sorted(known)
            file = (intent.file_name, content, "application/jsonl")
            return [(await client.files.create(file=file, purpose="fine-tune")).id]

        return await self._call(find_or_upload, f"training file {intent.file_name}")

    async def _find(
        self, intent: FineTuneIntent, files: list[str], record: JobRecord | None
    ) -> FineTuneJob | None:
        """Return the intent's job: one that isn't lost if there is, else the last lost one."""
        known = None
        if record is not None and record.job_id is not None:
            known = await self._known_job(record.job_id)
            if known is not None and not known.is_lost:
                return known
        if record is not None:
            files = [*files, record.file_id]

        async def look(client: AsyncOpenAI) -> list[FineTuneJob]:
            jobs = await _filtered_jobs(client, intent)
            if not any(_belongs(job, intent, files) for job in jobs):
                jobs = [job async for job in _each(client.fine_tuning.jobs.list(limit=_PAGE))]
            ours = [job for job in jobs if _belongs(job, intent, files)]
            ours.sort(key=lambda job: job.created_at or 0)
            return [_read_job(job, place) for place, job in enumerate(ours)]

        found = await self._call(look, "the list of fine-tune jobs")
        alive = [job for job in found if not job.is_lost]
        if alive:
            return min(alive, key=lambda job: job.status != "succeeded")
        return max([*([known] if known else []), *found], key=lambda j: j.attempt, default=None)

    async def _known_job(self, job_id: str) -> FineTuneJob | None:
        """Return a job that the service has made; None if it says that there is none."""

        async def ask(client: AsyncOpenAI) -> FineTuneJob | None:
            try:
                return _read_job(await client.fine_tuning.jobs.retrieve(job_id))
            except openai.NotFoundError:
                return None

        return await self._call(ask, f"fine-tune job {job_id}")

    async def _create(self, record: JobRecord, records: JobRecordFile) -> FineTuneJob:
        """Ask for a job, once, and write down before and after what is known of it.

        Raises
        ------
        TransientError
            If it may be taken another time, or has been taken already.
        """
        client = await self._connection.client()
        intent = record.intent
        metadata = intent.metadata(record.attempt)
        records.write(record)
        try:
            job = _read_job(
                await client.fine_tuning.jobs.create(
                    **_job_body(intent, record.file_id),
                    metadata=metadata,
                    extra_headers={"Idempotency-Key": metadata["idempotency_key"]},
                ),
                record.attempt,
            )
        except openai.OpenAIError as error:
            failure = self._connection.failure(error)
        else:
            records.confirm(record, job.id)
            return job
        if isinstance(failure, TransientError) and failure.may_have_acted:
            raise failure
        records.remove()
        if isinstance(failure, TransientError):
            raise failure
        raise FineTuneRefusedError(f"fine-tuning {intent.model!r} was refused: {failure}")

    async def _settle(
        self,
        intent: FineTuneIntent,
        files: list[str],
        record: JobRecord | None,
        at_least: float = 0.0,
    ) -> FineTuneJob | None:
        """Look for a job; one that the service may have taken, for as long as it may take to show.

        Without it, the last lost job is returned if there is one. It takes ``at_least`` so many
        seconds to say that there is no other.
        """
        loop = asyncio.get_running_loop()
        open_seconds = 0.0 if record is None else record.open_seconds(self._settle_seconds)
        deadline = loop.time() + max(open_seconds, at_least)
        pause = self._policy.first_delay_seconds
        what = f"{self.endpoint.label}: a request to fine-tune {intent.model!r}"
        for look in itertools.count():
            found = await self._find(intent, files, record)
            if found is not None and not found.is_lost:
                return found
            if found is not None and record is not None and found.attempt >= record.attempt:
                return found
            left = deadline - loop.time()
            if left <= 0:
                break
            if look == 0 and open_seconds > 0:
                _LOGGER.warning(
                    "%s may have been taken; looking for its job for %.0f s", what, open_seconds
                )
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        if open_seconds > 0:
            _LOGGER.warning("%s: no job of it has shown; it is taken as not made", what)
        return found

    async def _call(self, make: Callable[[AsyncOpenAI], Awaitable[_Result]], what: str) -> _Result:
        async def attempt() -> _Result:
            client = await self._connection.client()
            try:
                return await make(client)
            except openai.OpenAIError as error:
                failure = self._connection.failure(error)
            raise failure

        return await with_retries(attempt, self._policy, f"{what} at {self.endpoint.label}")

    @asynccontextmanager
    async def _only_one(self, intent: FineTuneIntent) -> AsyncIterator[None]:
        """Keep other threads and processes of this machine from making the same job meanwhile."""
        if self._folder is None:
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._folder / f"{intent.digest}.lock")
        while not lock.try_acquire():
            await asyncio.sleep(0.1)
        try:
            yield
        finally:
            lock.release()


async def _filtered_jobs(client: AsyncOpenAI, intent: FineTuneIntent) -> list[FineTuningJob]:
    """List with the service's metadata filter; nothing where it has none."""
    wanted = {"ratchet_intent": intent.digest}
    try:
        return [
            job async for job in _each(client.fine_tuning.jobs.list(limit=_PAGE, metadata=wanted))
        ]
    except (openai.BadRequestError, openai.UnprocessableEntityError):
        return []


async def _each(pages: Any) -> AsyncIterator[Any]:  # noqa: ANN401 -- the SDK's paginator
    """Return each item once; stop where a service repeats itself instead of going on."""
    seen: set[str] = set()
    async for item in pages:
        if item.id in seen:
            return
        seen.add(item.id)
        yield item


def _belongs(job: FineTuningJob, intent: FineTuneIntent, files: list[str]) -> bool:
    """Return whether a job is the intent's; by its file where the service keeps no metadata."""
    if job.metadata:
        return job.metadata.get("ratchet_intent") == intent.digest
    return job.training_file in files


def _job_body(intent: FineTuneIntent, file_id: str) -> dict[str, Any]:
    method: dict[str, Any] = {"type": intent.method}
    if intent.hyper_parameters:
        method[intent.method] = {"hyperparameters": dict(intent.hyper_parameters)}
    body: dict[str, Any] = {
        "model": intent.model,
        "training_file": file_id,
        "method": method,
    }
    if intent.suffix is not None:
        body["suffix"] = intent.suffix
    if intent.seed is not None:
        body["seed"] = intent.seed
    return body


def _read_job(job: FineTuningJob, attempt: int = 0) -> FineTuneJob:
    if not isinstance(job.status, str):
        raise TransientError(f"fine-tune job {job.id}: got the status {job.status!r}, expected one")
    status = job_status(job.status)
    error = getattr(job.error, "message", None) or getattr(job.error, "code", None)
    if status == "succeeded" and not job.fine_tuned_model:
        raise LanguageModelError(
            f"fine-tune job {job.id}: succeeded, but names no model; expected fine_tuned_model."
        )
    known = (job.metadata or {}).get("ratchet_attempt", "")
    return FineTuneJob(
        id=job.id,
        status=status,
        fine_tuned_model=job.fine_tuned_model,
        error=error,
        attempt=int(known) if known.isdigit() else attempt,
        trained_tokens=job.trained_tokens,
    )
