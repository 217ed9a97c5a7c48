"""Fine-tune jobs and deployments at a service, each created exactly once.

A :class:`FineTuningBackend` implements the service's API; this module has the logic common to all.
An intent is looked up before a job is created, and again after every response that does not show
whether the service accepted the job. The same holds for deployments, which some services require
before a trained model can be called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ratchet.errors import FineTuneError, LanguageModelError, StalledJobError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.exactly_once import CreationRequest, ExactlyOnceCreator
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob
from ratchet.language_models.fine_tuning_backends.base import (
    Deployment,
    DeploymentIntent,
    FineTuningBackend,
)
from ratchet.language_models.fine_tuning_backends.registry import build_tuning_backend
from ratchet.language_models.job_records import Intent, JobRecord, JobRecordFile
from ratchet.language_models.retrying import RetryPolicy, with_retries
from ratchet.store.locks import FileLock

SETTLE_SECONDS = 120.0
STALL_SECONDS = 600.0

_LOGGER = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class FineTuneClient:
    """Creates and monitors an endpoint's fine-tune jobs, and deploys their models.

    Parameters
    ----------
    folder
        Where processes of this machine lock and record creation requests. Without it, a request of
        a killed process cannot be recovered.
    settle_seconds
        The delay until a new job is listed by the service. A job that may exist is searched for
        this long before it is requested again (with the same Idempotency-Key). The embedded service
        lists jobs immediately.
    backend
        The service's API; by default the one that fits the endpoint.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        folder: Path | None = None,
        policy: RetryPolicy | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        backend: FineTuningBackend | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.backend = backend or build_tuning_backend(endpoint)
        self._folder = folder
        self._policy = policy or RetryPolicy()
        self._settle_seconds = 0.0 if self.backend.lists_at_once else settle_seconds
        self._once = ExactlyOnceCreator(self.backend.label, self._policy, self._settle_seconds)

    def __repr__(self) -> str:
        return f"FineTuneClient({self.endpoint!r})"

    async def ensure_job(
        self,
        intent: FineTuneIntent,
        file_bytes: bytes,
        on_lost: Callable[[FineTuneJob], None] | None = None,
    ) -> FineTuneJob:
        """Return the intent's job on the training file; create one unless one has not failed.

        ``on_lost`` is called with a failed or cancelled job before its replacement is created.

        Raises
        ------
        ParameterError
            If the backend lacks a parameter that the job or its model requires.
        FineTuneError
            If the service refuses the file or the job, with its reason.
        LanguageModelError
            If it cannot be reached.
        """
        self.backend.check()
        async with self._locked(intent):
            what = f"training file {intent.file_name}"
            files = await self._call(lambda: self.backend.deliver(intent, file_bytes), what)

            async def find(record: JobRecord | None) -> FineTuneJob | None:
                return await self._find(intent, files, record)

            async def make(attempt: int) -> FineTuneJob:
                return await self.backend.create(intent, files[0], attempt)

            what = f"fine-tuning {intent.model!r}"
            order = CreationRequest(intent, what, "job", files[0], find, make, on_lost)
            return await self._once.ensure(order, self._records(intent))

    async def status(self, job_id: str) -> FineTuneJob:
        """Return a job's current state.

        Raises
        ------
        LanguageModelError
            Also if the job does not exist.
        """
        job = await self._call(lambda: self.backend.job(job_id), f"fine-tune job {job_id}")
        if job is None:
            raise LanguageModelError(
                f"{self.backend.label}: fine-tune job {job_id} does not exist."
            )
        return job

    async def cancel(self, job_id: str) -> None:
        """Cancel a job; trained tokens are still billed."""
        await self._call(lambda: self.backend.cancel(job_id), f"fine-tune job {job_id}")

    async def wait(
        self,
        job_ids: Iterable[str],
        poll_seconds: float = 5.0,
        poll_seconds_max: float = 60.0,
        stall_seconds: float = STALL_SECONDS,
        *,
        on_look: Callable[[FineTuneJob], None] | None = None,
    ) -> dict[str, FineTuneJob]:
        """Wait until all jobs are final, polling them concurrently.

        The polling interval grows by half from ``poll_seconds`` to ``poll_seconds_max``.
        ``on_look`` receives each polled job, with the completed steps of a running one.

        Raises
        ------
        StalledJobError
            If a job has not changed for ``stall_seconds`` and the service reports that it is
            degraded. Without a health report, queues may be long.
        """

        async def one(job_id: str) -> FineTuneJob:
            pause, seen, since = poll_seconds, None, time.monotonic()
            while not (job := await self.status(job_id)).is_final:
                if on_look is not None:
                    if job.status == "running":
                        job = replace(job, steps=await self.backend.steps(job))
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

    async def activate(
        self, model: str, poll_seconds: float = 5.0, poll_seconds_max: float = 60.0
    ) -> str:
        """Deploy a trained model, once; return the name under which it is called.

        Does nothing if the service needs no deployment or the model is deployed already.

        Raises
        ------
        FineTuneError
            If the service refuses, or the deployment fails, with its reason.
        """
        if not self.backend.deploys:
            return model
        intent = DeploymentIntent(model)

        async def find(_: JobRecord | None) -> Deployment | None:
            return await self._find_deployment(intent)

        async def make(attempt: int) -> Deployment:
            return await self.backend.deploy(intent, attempt)

        async with self._locked(intent):
            order = CreationRequest(intent, f"deploying {model!r}", "deployment", model, find, make)
            deployment = await self._once.ensure(order, self._records(intent))
        deployment = await self._until_ready(intent, deployment, poll_seconds, poll_seconds_max)
        if deployment.is_lost:
            raise FineTuneError(
                f"{self.backend.label}: deploying {model!r} failed: deployment {deployment.id}:"
                f" {deployment.error or 'no reason given'}. The trained model is stored: run the"
                " same command again to retry the deployment."
            )
        return deployment.called_as

    async def _until_ready(
        self, intent: DeploymentIntent, deployment: Deployment, pause: float, longest: float
    ) -> Deployment:
        """Poll a deployment until it is ready, lost, or missing for longer than listings lag."""
        since = time.monotonic()
        while deployment.status == "pending":
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, max(pause, longest))
            if (current := await self._find_deployment(intent)) is not None:
                deployment, since = current, time.monotonic()
            elif time.monotonic() - since >= self._settle_seconds:
                raise FineTuneError(
                    f"{self.backend.label}: deployment {deployment.id} of {intent.model!r} no"
                    " longer exists, expected it to become ready. Run the same command to create"
                    " another."
                )
        return deployment

    async def _find_deployment(self, intent: DeploymentIntent) -> Deployment | None:
        """Return a deployment that is not lost, preferably ready; otherwise the last lost one."""
        what = f"the list of deployments of {intent.model!r}"
        deployments = await self._call(lambda: self.backend.find_deployments(intent), what)
        alive = [deployment for deployment in deployments if not deployment.is_lost]
        if alive:
            return min(alive, key=lambda deployment: deployment.status != "ready")
        return max(deployments, key=lambda deployment: deployment.attempt, default=None)

    async def deactivate(self, model: str) -> None:
        """Delete a model's deployments, if any; the model remains."""
        if not self.backend.deploys:
            return
        intent = DeploymentIntent(model)
        what = f"the deployments of {model!r}"
        async with self._locked(intent):
            for deployment in await self._call(lambda: self.backend.find_deployments(intent), what):
                await self._call(partial(self.backend.undeploy, deployment), what)
            self._records(intent).remove()

    async def _check_health(self, job: FineTuneJob, unchanged_seconds: float) -> None:
        what = f"fine-tune job {job.id} at {self.backend.label}"
        health = await self.backend.health()
        if health.get("status") == "degraded":
            reason = health.get("reason") or "no reason given"
            raise StalledJobError(
                f"{what}: still {job.status}, unchanged for {unchanged_seconds:.0f} s, and the"
                f" service reports that it is degraded: {reason}. The job is not lost: fix the"
                " service, then run the same command again to wait for the same job."
            )
        _LOGGER.info("%s: still %s after %.0f s", what, job.status, unchanged_seconds)

    async def _find(
        self, intent: FineTuneIntent, files: list[str], record: JobRecord | None
    ) -> FineTuneJob | None:
        """Return the intent's job: one that is not lost if any, otherwise the last lost one."""
        known = None
        if record is not None and record.job_id is not None:
            known_id = record.job_id
            what = f"fine-tune job {known_id}"
            known = await self._call(lambda: self.backend.job(known_id), what)
            if known is not None and not known.is_lost:
                return known
        if record is not None:
            files = [*files, record.file_id]
        what = "the list of fine-tune jobs"
        jobs = await self._call(lambda: self.backend.find(intent, files), what)
        alive = [job for job in jobs if not job.is_lost]
        if alive:
            return min(alive, key=lambda job: job.status != "succeeded")
        return max([*([known] if known else []), *jobs], key=lambda j: j.attempt, default=None)

    async def _call(self, make: Callable[[], Awaitable[_Result]], what: str) -> _Result:
        return await with_retries(make, self._policy, f"{what} at {self.backend.label}")

    def _records(self, intent: Intent) -> JobRecordFile:
        return JobRecordFile(self._folder, self.backend.label, intent)

    @asynccontextmanager
    async def _locked(self, intent: Intent) -> AsyncIterator[None]:
        """Lock out this machine's other threads and processes from creating the same."""
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
