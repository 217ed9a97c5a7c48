"""Fine-tune jobs at a service, each made exactly once whatever happens in between.

An intent is looked up before a job is made, and again after every answer that leaves it open
whether the service has taken the job: by the intent's digest in the job's metadata, and by the
training file, whose name has the digest too. So a run that was killed at any point, or was
answered with a time-out, an error or nothing, finds its job and adopts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import openai

from ratchet.errors import FineTuneError, FineTuneRefusedError, LanguageModelError
from ratchet.language_models.connection import Connection
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob, job_status
from ratchet.language_models.retrying import RetryPolicy, TransientError, with_retries
from ratchet.store.locks import FileLock

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.fine_tuning import FineTuningJob

_PAGE = 100
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Found:
    """A job of an intent, as the service lists it."""

    job: FineTuneJob
    created_at: float


class FineTuneClient:
    """Makes and watches an endpoint's fine-tune jobs.

    Parameters
    ----------
    lock_folder
        Where processes of this machine agree on who looks up and makes a job.
    settle_seconds
        How long after an answer that leaves it open the job is looked for, before another attempt
        (with the same Idempotency-Key) is made to create it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        lock_folder: Path | None = None,
        policy: RetryPolicy | None = None,
        settle_seconds: float = 30.0,
    ) -> None:
        self.endpoint = endpoint
        self._lock_folder = lock_folder
        self._policy = policy or RetryPolicy()
        self._settle_seconds = settle_seconds
        self._connection = Connection(endpoint)

    def __repr__(self) -> str:
        return f"FineTuneClient({self.endpoint!r})"

    async def ensure_job(self, intent: FineTuneIntent, file_bytes: bytes) -> FineTuneJob:
        """Return the intent's job on the training file, made if there is none that hasn't failed.

        Raises
        ------
        FineTuneError
            If the service refuses the file or the job; with its reason.
        LanguageModelError
            If it can't be reached.
        """
        async with self._only_one(intent):
            files = await self._ensure_file(intent, file_bytes)
            for _ in range(self._policy.max_attempts):
                found = await self._find(intent, files)
                if found is not None and not found.is_lost:
                    return found
                attempt = 0 if found is None else found.attempt + 1
                try:
                    return await self._create(intent, files[0], attempt)
                except TransientError as error:
                    settled = await self._settle(intent, files, attempt, error)
                if settled is not None:
                    return settled
            raise FineTuneError(
                f"{self.endpoint.label}: creating a fine-tune job of {intent.model!r} failed"
                f" {self._policy.max_attempts} times. Nothing was made twice; run the same"
                " command again when the service answers."
            )

    async def status(self, job_id: str) -> FineTuneJob:
        """Ask how a job is."""

        async def ask(client: AsyncOpenAI) -> FineTuningJob:
            return await client.fine_tuning.jobs.retrieve(job_id)

        return _read_job(await self._call(ask, f"fine-tune job {job_id}"))

    async def wait(
        self, job_ids: Iterable[str], poll_seconds: float = 5.0, poll_seconds_max: float = 60.0
    ) -> dict[str, FineTuneJob]:
        """Wait until all jobs are final, all at once.

        The pause between two looks grows by half from ``poll_seconds`` to ``poll_seconds_max``.
        """

        async def one(job_id: str) -> FineTuneJob:
            pause = poll_seconds
            while not (job := await self.status(job_id)).is_final:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, max(poll_seconds, poll_seconds_max))
            return job

        ids = list(dict.fromkeys(job_ids))
        return dict(zip(ids, await asyncio.gather(*map(one, ids)), strict=True))

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

    async def _find(self, intent: FineTuneIntent, files: list[str]) -> FineTuneJob | None:
        """Return the intent's job: one that isn't lost if there is, else the last lost one."""

        async def look(client: AsyncOpenAI) -> list[_Found]:
            jobs = await _filtered_jobs(client, intent)
            if not any(_belongs(job, intent, files) for job in jobs):
                jobs = [job async for job in _each(client.fine_tuning.jobs.list(limit=_PAGE))]
            return [
                _Found(_read_job(job), float(job.created_at or 0))
                for job in jobs
                if _belongs(job, intent, files)
            ]

        found = await self._call(look, "the list of fine-tune jobs")
        if not found:
            return None
        alive = [f for f in found if not f.job.is_lost]
        if alive:
            return min(alive, key=lambda f: (f.job.status != "succeeded", f.created_at)).job
        return max(found, key=lambda f: (f.job.attempt, f.created_at)).job

    async def _create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Ask for a job, once.

        Raises
        ------
        TransientError
            If it is open whether the service has taken it.
        """
        client = await self._connection.client()
        metadata = intent.metadata(attempt)
        try:
            job = await client.fine_tuning.jobs.create(
                **_job_body(intent, file_id),
                metadata=metadata,
                extra_headers={"Idempotency-Key": metadata["idempotency_key"]},
            )
        except openai.OpenAIError as error:
            failure = self._connection.failure(error)
        else:
            return _read_job(job, attempt)
        if isinstance(failure, TransientError):
            raise failure
        raise FineTuneRefusedError(f"fine-tuning {intent.model!r} was refused: {failure}")

    async def _settle(
        self, intent: FineTuneIntent, files: list[str], attempt: int, error: TransientError
    ) -> FineTuneJob | None:
        """Look for a job that the service may have taken, for as long as it may take to show."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self._settle_seconds, error.retry_after or 0.0)
        pause = min(self._policy.first_delay_seconds, self._settle_seconds)
        while True:
            found = await self._find(intent, files)
            if found is not None and found.attempt >= attempt:
                return found
            left = deadline - loop.time()
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
            pause *= 2

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
        if self._lock_folder is None:
            yield
            return
        self._lock_folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._lock_folder / f"{intent.digest}.lock")
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
