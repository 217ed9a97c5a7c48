"""Fine-tune jobs at a service, each made exactly once whatever happens in between.

What a service's words for it are says its :class:`TuningBackend`; what holds of all services is
here: an intent is looked up before a job is made, and again after every answer that leaves it open
whether the service has taken the job. So are the deployments that some need before a trained model
can be asked.
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
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob
from ratchet.language_models.job_records import Intent, JobRecord, JobRecordFile
from ratchet.language_models.made_once import MadeOnce, Order
from ratchet.language_models.retrying import RetryPolicy, with_retries
from ratchet.language_models.tuning.base import Deployment, DeploymentIntent, TuningBackend
from ratchet.language_models.tuning.registry import build_tuning_backend
from ratchet.store.locks import FileLock

SETTLE_SECONDS = 120.0
STALL_SECONDS = 600.0

_LOGGER = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class FineTuneClient:
    """Makes and watches an endpoint's fine-tune jobs, and makes their models callable.

    Parameters
    ----------
    folder
        Where processes of this machine agree on who looks up and makes a job, and where it is
        written down what was asked for. Without one, a killed process leaves nothing to know it by.
    settle_seconds
        How long a job may take to show in the service's list. So long one that may have been made
        is looked for, before another attempt (with the same Idempotency-Key) is made to create it.
        Ratchet's own service lists a job at once.
    backend
        The service's words; those that fit the endpoint when not given.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        folder: Path | None = None,
        policy: RetryPolicy | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        backend: TuningBackend | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.backend = backend or build_tuning_backend(endpoint)
        self._folder = folder
        self._policy = policy or RetryPolicy()
        self._settle_seconds = 0.0 if self.backend.lists_at_once else settle_seconds
        self._once = MadeOnce(self.backend.label, self._policy, self._settle_seconds)

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
        ParameterError
            If the backend lacks a parameter that the job or its model needs.
        FineTuneError
            If the service refuses the file or the job; with its reason.
        LanguageModelError
            If it can't be reached.
        """
        self.backend.check()
        async with self._only_one(intent):
            what = f"training file {intent.file_name}"
            files = await self._call(lambda: self.backend.deliver(intent, file_bytes), what)

            async def find(record: JobRecord | None) -> FineTuneJob | None:
                return await self._find(intent, files, record)

            async def make(attempt: int) -> FineTuneJob:
                return await self.backend.create(intent, files[0], attempt)

            what = f"fine-tuning {intent.model!r}"
            order = Order(intent, what, "job", files[0], find, make, on_lost)
            return await self._once.ensure(order, self._records(intent))

    async def status(self, job_id: str) -> FineTuneJob:
        """Ask how a job is.

        Raises
        ------
        LanguageModelError
            Also if there is no such job.
        """
        job = await self._call(lambda: self.backend.job(job_id), f"fine-tune job {job_id}")
        if job is None:
            raise LanguageModelError(f"{self.backend.label}: there is no fine-tune job {job_id}.")
        return job

    async def cancel(self, job_id: str) -> None:
        """End a job without a model; what it has cost is paid."""
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
        """Make a trained model callable, once; return the name by which it is asked.

        It is there already where the service needs nothing, or where it was made so before.

        Raises
        ------
        FineTuneError
            If the service refuses, or the deployment fails; with its reason.
        """
        if not self.backend.deploys:
            return model
        intent = DeploymentIntent(model)

        async def find(_: JobRecord | None) -> Deployment | None:
            return await self._find_deployment(intent)

        async def make(attempt: int) -> Deployment:
            return await self.backend.deploy(intent, attempt)

        async with self._only_one(intent):
            order = Order(intent, f"deploying {model!r}", "deployment", model, find, make)
            deployment = await self._once.ensure(order, self._records(intent))
        deployment = await self._until_ready(intent, deployment, poll_seconds, poll_seconds_max)
        if deployment.is_lost:
            raise FineTuneError(
                f"{self.backend.label}: deploying {model!r} failed: deployment {deployment.id}:"
                f" {deployment.error or 'no reason given'}. The model is trained and kept: run the"
                " same command again to deploy it anew."
            )
        return deployment.called_as

    async def _until_ready(
        self, intent: DeploymentIntent, deployment: Deployment, pause: float, longest: float
    ) -> Deployment:
        """Look at a deployment until it is ready or lost, or has gone for longer than lists lag."""
        since = time.monotonic()
        while deployment.status == "pending":
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, max(pause, longest))
            if (found := await self._find_deployment(intent)) is not None:
                deployment, since = found, time.monotonic()
            elif time.monotonic() - since >= self._settle_seconds:
                raise FineTuneError(
                    f"{self.backend.label}: deployment {deployment.id} of {intent.model!r} is not"
                    " there any more, expected it to get ready. Run the same command again to make"
                    " another."
                )
        return deployment

    async def _find_deployment(self, intent: DeploymentIntent) -> Deployment | None:
        """Return one that isn't lost, a ready one first; else the last lost one, if any."""
        what = f"the list of deployments of {intent.model!r}"
        found = await self._call(lambda: self.backend.find_deployments(intent), what)
        alive = [deployment for deployment in found if not deployment.is_lost]
        if alive:
            return min(alive, key=lambda deployment: deployment.status != "ready")
        return max(found, key=lambda deployment: deployment.attempt, default=None)

    async def deactivate(self, model: str) -> None:
        """Take back what makes a model callable; the model stays. Nothing where there is none."""
        if not self.backend.deploys:
            return
        intent = DeploymentIntent(model)
        what = f"the deployments of {model!r}"
        async with self._only_one(intent):
            for found in await self._call(lambda: self.backend.find_deployments(intent), what):
                await self._call(partial(self.backend.undeploy, found), what)
            self._records(intent).remove()

    async def _check_health(self, job: FineTuneJob, unchanged_seconds: float) -> None:
        what = f"fine-tune job {job.id} at {self.backend.label}"
        health = await self.backend.health()
        if health.get("status") == "degraded":
            reason = health.get("reason") or "it gives no reason"
            raise StalledJobError(
                f"{what}: still {job.status}, unchanged for {unchanged_seconds:.0f} s, and the"
                f" service says that it is degraded: {reason}. Nothing is lost: mend that there,"
                " then run the same command again; it goes on waiting for the same job."
            )
        _LOGGER.info("%s: still %s after %.0f s", what, job.status, unchanged_seconds)

    async def _find(
        self, intent: FineTuneIntent, files: list[str], record: JobRecord | None
    ) -> FineTuneJob | None:
        """Return the intent's job: one that isn't lost if there is, else the last lost one."""
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
        found = await self._call(lambda: self.backend.find(intent, files), what)
        alive = [job for job in found if not job.is_lost]
        if alive:
            return min(alive, key=lambda job: job.status != "succeeded")
        return max([*([known] if known else []), *found], key=lambda j: j.attempt, default=None)

    async def _call(self, make: Callable[[], Awaitable[_Result]], what: str) -> _Result:
        return await with_retries(make, self._policy, f"{what} at {self.backend.label}")

    def _records(self, intent: Intent) -> JobRecordFile:
        return JobRecordFile(self._folder, self.backend.label, intent)

    @asynccontextmanager
    async def _only_one(self, intent: Intent) -> AsyncIterator[None]:
        """Keep other threads and processes of this machine from making the same meanwhile."""
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
