"""Together's fine-tuning API.

``POST /files/upload``, ``GET /files``; ``POST /fine-tunes``, ``GET /fine-tunes``,
``/fine-tunes/{id}``, ``…/cancel``. Jobs have no metadata and no idempotency key: a job is found by
its training file, whose name contains the intent's digest. A LoRA model is called serverless by its
output name if its base model supports it; others need a dedicated endpoint (``POST /endpoints``,
``GET /endpoints``, ``DELETE /endpoints/{id}``), found by its ``display_name``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from aiohttp import FormData

from ratchet.errors import LanguageModelError
from ratchet.language_models.connection import Connection, StatusError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob, JobStatus
from ratchet.language_models.fine_tuning_backends.base import (
    Deployment,
    DeploymentIntent,
    DeploymentStatus,
    FineTuningBackend,
)
from ratchet.language_models.fine_tuning_backends.registry import register_tuning_backend
from ratchet.language_models.retrying import TransientError
from ratchet.parameters.chat_agents import FineTuningServiceParameters

_NOT_FOUND = 404
_STATUSES: Mapping[str, JobStatus] = {
    "pending": "pending",
    "queued": "pending",
    "completed": "succeeded",
    "error": "failed",
    "user_error": "failed",
    "cancelled": "cancelled",
}
_STATES: Mapping[str, DeploymentStatus] = {
    "STARTED": "ready",
    "ERROR": "failed",
    "STOPPED": "failed",
    "STOPPING": "failed",
}


@register_tuning_backend("together")
class TogetherBackend(FineTuningBackend):
    """Together, at ``https://api.together.xyz/v1``.

    With ``hardware``, each trained model gets a dedicated endpoint, billed by the minute.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"hardware"})
    hyper_parameters: ClassVar[frozenset[str]] = FineTuningBackend.hyper_parameters | {
        "learning_rate",
        "lora_rank",
    }

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        super().__init__(endpoint, service)
        self.deploys = service.hardware is not None
        self._connection = Connection(endpoint)

    async def deliver(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """Return ids of the intent's uploaded files; upload it if missing."""
        known = [
            str(file["id"])
            for file in await self._list("files")
            if file.get("filename") == intent.file_name
        ]
        if known:
            return sorted(known)
        form = FormData()
        form.add_field("purpose", "fine-tune")
        form.add_field("file_name", intent.file_name)
        form.add_field("file", content, filename=intent.file_name, content_type="application/jsonl")
        return [self._id(await self._connection.request_json("POST", "files/upload", form=form))]

    async def find(self, intent: FineTuneIntent, files: Sequence[str]) -> list[FineTuneJob]:
        """List the jobs on the intent's files."""
        jobs = [job for job in await self._list("fine-tunes") if job.get("training_file") in files]
        jobs.sort(key=lambda job: str(job.get("created_at")))
        return [self._read(job, attempt) for attempt, job in enumerate(jobs)]

    async def job(self, job_id: str) -> FineTuneJob | None:
        """Return a job."""
        try:
            return self._read(await self._connection.request_json("GET", f"fine-tunes/{job_id}"))
        except StatusError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Request a job, with LoRA if a rank is given, otherwise the service's default."""
        values = dict(intent.hyper_parameters)
        method: dict[str, Any] = {"method": "dpo" if intent.method == "dpo" else "sft"}
        if intent.method == "supervised":
            method["train_on_inputs"] = False
        if (beta := values.pop("beta", None)) is not None:
            method["dpo_beta"] = beta
        body: dict[str, Any] = {
            "model": intent.model,
            "training_file": file_id,
            "training_method": method,
        }
        if (rank := values.pop("lora_rank", None)) is not None:
            body["training_type"] = {"type": "Lora", "lora_r": rank, "lora_alpha": 2 * rank}
        if intent.suffix is not None:
            body["suffix"] = intent.suffix
        parents = [job for job in await self._list("fine-tunes") if _made(job) == intent.model]
        if parents:  # a model trained here continues from its job
            body |= {"model": parents[0].get("model"), "from_checkpoint": self._id(parents[0])}
        answer = await self._connection.request_json("POST", "fine-tunes", {**body, **values})
        return self._read(answer, attempt)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        await self._connection.send("POST", f"fine-tunes/{job_id}/cancel")

    async def find_deployments(self, intent: DeploymentIntent) -> list[Deployment]:
        """List the endpoints of the intent's names; a stopped one counts as lost."""
        deployments = [
            self._read_endpoint(item, attempt)
            for item in await self._list("endpoints")
            if (attempt := intent.attempt_of(str(item.get("display_name")))) is not None
        ]
        return sorted(deployments, key=lambda deployment: deployment.attempt)

    async def deploy(self, intent: DeploymentIntent, attempt: int) -> Deployment:
        """Request a dedicated endpoint."""
        body = {
            "model": intent.model,
            "hardware": self.service.hardware,
            "display_name": intent.name(attempt),
            "autoscaling": {"min_replicas": 1, "max_replicas": 1},
        }
        return self._read_endpoint(
            await self._connection.request_json("POST", "endpoints", body), attempt
        )

    async def undeploy(self, deployment: Deployment) -> None:
        """Delete an endpoint."""
        await self._connection.send("DELETE", f"endpoints/{deployment.id}")

    async def _list(self, what: str) -> list[dict[str, Any]]:
        items = (await self._connection.request_json("GET", what)).get("data")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise TransientError(f"{self.label}: the list of {what} has no 'data'")
        return items

    def _id(self, answer: Mapping[str, Any]) -> str:
        if not isinstance(answer.get("id"), str):
            raise TransientError(f"{self.label}: the response has no 'id'")
        return str(answer["id"])

    def _read(self, job: Mapping[str, Any], attempt: int = 0) -> FineTuneJob:
        job_id, word = self._id(job), job.get("status")
        if not isinstance(word, str):
            raise TransientError(f"fine-tune job {job_id}: got the status {word!r}, expected one")
        status = _STATUSES.get(word, "running")
        model = _made(job)
        if status == "succeeded" and not model:
            raise LanguageModelError(
                f"fine-tune job {job_id}: completed, but names no model; expected"
                " model_output_name."
            )
        return FineTuneJob(
            job_id,
            status,
            model if status == "succeeded" else None,
            _last_event(job) if status == "failed" else None,
            attempt,
            job.get("token_count") if status == "succeeded" else None,
        )

    def _read_endpoint(self, item: Mapping[str, Any], attempt: int) -> Deployment:
        state = item.get("state")
        if not isinstance(state, str):
            raise TransientError(f"{self.label}: an endpoint has no 'state'")
        status = _STATES.get(state, "pending")
        error = state if status == "failed" else None
        return Deployment(self._id(item), status, str(item.get("name")), error, attempt)


def _made(job: Mapping[str, Any]) -> str | None:
    """Return the name of the model that a job creates."""
    name = job.get("model_output_name") or job.get("output_name")
    return None if name is None else str(name)


def _last_event(job: Mapping[str, Any]) -> str | None:
    """Return the message of the job's last event: Together gives no other reason."""
    events = [event for event in job.get("events") or () if isinstance(event, dict)]
    return str(events[-1].get("message")) if events else None
