"""OpenAI's fine-tuning API, also implemented by other services.

``POST /files``, ``GET /files``, ``POST /fine_tuning/jobs``, ``GET /fine_tuning/jobs`` (with a
metadata filter if supported), ``/fine_tuning/jobs/{id}``, ``…/cancel``, ``…/events``. The trained
model is callable immediately.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import openai

from ratchet.errors import LanguageModelError
from ratchet.language_models.connection import Connection
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob, job_status
from ratchet.language_models.fine_tuning_backends.base import FineTuningBackend
from ratchet.language_models.fine_tuning_backends.registry import register_tuning_backend
from ratchet.language_models.retrying import TransientError
from ratchet.parameters.chat_agents import FineTuningServiceParameters

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.fine_tuning import FineTuningJob


_PAGE = 100
_LAST_EVENTS = 5
_STEP = re.compile(r"Step (\d+)/(\d+)\b")
_Result = TypeVar("_Result")


@register_tuning_backend("openai")
class OpenAiBackend(FineTuningBackend):
    """OpenAI and compatible services.

    A job is found by the intent's digest in its metadata, or by its training file, whose name
    contains the digest. The attempt's number is sent as ``Idempotency-Key``, which OpenAI ignores.
    """

    hyper_parameters: ClassVar[frozenset[str]] = FineTuningBackend.hyper_parameters | {
        "learning_rate_multiplier"
    }

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        super().__init__(endpoint, service)
        self._connection = Connection(endpoint)
        self._uploaded: dict[str, str] = {}

    async def deliver(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """Return ids of the intent's uploaded files; upload it if missing."""

        async def find_or_upload(client: AsyncOpenAI) -> list[str]:
            known = [
                file
                async for file in _each(client.files.list(purpose="fine-tune", limit=_PAGE))
                if file.filename == intent.file_name and file.status != "error"
            ]
            uploaded = self._uploaded.get(intent.digest)
            if not known and uploaded is not None:  # the list lags
                known = [await client.files.retrieve(uploaded)]
            if not known:
                file = (intent.file_name, content, "application/jsonl")
                known = [await client.files.create(file=file, purpose="fine-tune")]
                self._uploaded[intent.digest] = known[0].id
            return sorted(file.id for file in self._usable(known))

        return await self._ask(find_or_upload)

    def _usable(self, files: list[Any]) -> list[Any]:
        return files

    async def find(self, intent: FineTuneIntent, files: Sequence[str]) -> list[FineTuneJob]:
        """List the jobs with the intent's digest, or on its files."""

        async def look(client: AsyncOpenAI) -> list[FineTuneJob]:
            jobs = await _filtered_jobs(client, intent)
            if not any(_belongs(job, intent, files) for job in jobs):
                jobs = [job async for job in _each(client.fine_tuning.jobs.list(limit=_PAGE))]
            ours = [job for job in jobs if _belongs(job, intent, files)]
            ours.sort(key=lambda job: job.created_at or 0)
            return [_read_job(job, number) for number, job in enumerate(ours)]

        return await self._ask(look)

    async def job(self, job_id: str) -> FineTuneJob | None:
        """Return a job."""

        async def ask(client: AsyncOpenAI) -> FineTuneJob | None:
            try:
                return _read_job(await client.fine_tuning.jobs.retrieve(job_id))
            except openai.NotFoundError:
                return None

        return await self._ask(ask)

    async def create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Request a job with the metadata by which it is found."""
        metadata = intent.metadata(attempt)

        async def ask(client: AsyncOpenAI) -> FineTuneJob:
            job = await client.fine_tuning.jobs.create(
                **_job_body(intent, file_id),
                metadata=metadata,
                extra_headers={"Idempotency-Key": metadata["idempotency_key"]},
            )
            return _read_job(job, attempt)

        return await self._ask(ask)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""

        async def ask(client: AsyncOpenAI) -> None:
            await client.fine_tuning.jobs.cancel(job_id)

        await self._ask(ask)

    async def steps(self, job: FineTuneJob) -> tuple[int, int] | None:
        """Read the last steps from the job's events."""
        client = await self._connection.client()
        try:
            events = (await client.fine_tuning.jobs.list_events(job.id, limit=_LAST_EVENTS)).data
        except openai.OpenAIError:
            return None
        steps = [match for event in events or () if (match := _STEP.match(event.message or ""))]
        return max(((int(match[1]), int(match[2])) for match in steps), default=None)

    async def health(self) -> Mapping[str, Any]:
        """Return the response of ``/health``, if it exists."""
        health = await self._connection.health()
        return {name: self._connection.redact(str(value)) for name, value in health.items()}

    async def _ask(self, make: Callable[[AsyncOpenAI], Awaitable[_Result]]) -> _Result:
        client = await self._connection.client()
        try:
            return await make(client)
        except openai.OpenAIError as error:
            failure = self._connection.failure(error)
        raise failure  # outside the except block: texts of other errors may contain the key


async def _filtered_jobs(client: AsyncOpenAI, intent: FineTuneIntent) -> list[FineTuningJob]:
    """List with the service's metadata filter; empty if unsupported."""
    metadata = {"ratchet_intent": intent.digest}
    try:
        return [
            job async for job in _each(client.fine_tuning.jobs.list(limit=_PAGE, metadata=metadata))
        ]
    except (openai.BadRequestError, openai.UnprocessableEntityError):
        return []


async def _each(pages: Any) -> AsyncIterator[Any]:  # noqa: ANN401 -- the SDK's paginator
    """Return each item once; stop if a service repeats items instead of paging."""
    seen: set[str] = set()
    async for item in pages:
        if item.id in seen:
            return
        seen.add(item.id)
        yield item


def _belongs(job: FineTuningJob, intent: FineTuneIntent, files: Sequence[str]) -> bool:
    """Return whether a job is the intent's; by its file if the service stores no metadata."""
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


@register_tuning_backend("ratchet")
class RatchetBackend(OpenAiBackend):
    """The embedded service, or ``ratchet llm serve`` on any machine."""

    hyper_parameters: ClassVar[frozenset[str]] = OpenAiBackend.hyper_parameters | {"lora_rank"}
    lists_at_once: ClassVar[bool] = True

    @property
    def is_free(self) -> bool:
        """Always True: jobs run on the user's machine."""
        return True
