"""Fireworks' control plane, and the LoRA deployments of its trained models.

``POST /accounts/{account}/datasets``, ``…/datasets/{id}:upload``, ``GET …/datasets/{id}``;
``…/supervisedFineTuningJobs`` and ``…/dpoJobs`` (``POST``, ``GET``, ``…/{id}:cancel``);
``…/deployments``, or ``…/deployedModels`` to load a model onto a deployment with add-ons. The
client chooses the ids of datasets, jobs and deployments: a repeated request gets a 409
``ALREADY_EXISTS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from aiohttp import FormData

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

CONTROL_URL = "https://api.fireworks.ai/v1"
_NOT_FOUND = 404
_COLLECTIONS = {"supervised": "supervisedFineTuningJobs", "dpo": "dpoJobs"}
_STATES: Mapping[str, JobStatus] = {
    "JOB_STATE_CREATING": "pending",
    "JOB_STATE_PENDING": "pending",
    "JOB_STATE_VALIDATING": "pending",
    "JOB_STATE_CREATING_INPUT_DATASET": "pending",
    "JOB_STATE_COMPLETED": "succeeded",
    "JOB_STATE_EARLY_STOPPED": "succeeded",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_EXPIRED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_DELETING": "cancelled",
    "JOB_STATE_DELETING_CLEANING_UP": "cancelled",
}
_DEPLOYMENTS: Mapping[str, DeploymentStatus] = {
    "READY": "ready",
    "DEPLOYED": "ready",
    "FAILED": "failed",
    "DELETING": "failed",
    "DELETED": "failed",
    "UNDEPLOYED": "failed",
    "UNDEPLOYING": "failed",
}
_MOST_ATTEMPTS = 100
_PAGE = 200


@register_tuning_backend("fireworks")
class FireworksBackend(FineTuningBackend):
    """Fireworks; its models are called at ``https://api.fireworks.ai/inference/v1``.

    A job's id is the intent's digest and the attempt's number. Its model is loaded onto
    ``deployment`` if set; otherwise it gets a dedicated deployment, billed by the hour while it has
    replicas, which scales to none when idle.
    """

    reads: ClassVar[frozenset[str]] = frozenset(
        {"url", "api_key_name", "account", "deployment", "hardware"}
    )
    hyper_parameters: ClassVar[frozenset[str]] = frozenset(
        {"n_epochs", "learning_rate", "lora_rank"}
    )
    lists_at_once: ClassVar[bool] = True
    deploys = True

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        super().__init__(endpoint, service)
        key = service.api_key_name or endpoint.api_key_name
        self._control = Connection(Endpoint(service.url or CONTROL_URL, key))

    def check(self) -> None:
        """Check that the account is set."""
        self._required("account", "my-account")

    async def deliver(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """Create the intent's dataset if missing, upload it if empty; return its name."""
        dataset_id = f"ratchet-{intent.digest[:32]}"
        dataset = await self._get(f"datasets/{dataset_id}")
        if dataset is None:
            shape = {
                "exampleCount": str(content.count(b"\n")),
                "userUploaded": {},
                "format": "CHAT",
            }
            body = {"datasetId": dataset_id, "dataset": shape}
            dataset = await self._control.request_json("POST", self._path("datasets"), body)
        if dataset.get("state") != "READY":
            form = FormData()
            form.add_field("file", content, filename=intent.file_name)
            path = self._path(f"datasets/{dataset_id}:upload")
            await self._control.send("POST", path, form=form)
            dataset = await self._get(f"datasets/{dataset_id}") or {}
            if dataset.get("state") != "READY":
                raise TransientError(f"{self.label}: dataset {dataset_id} is not ready yet")
        return [self._path(f"datasets/{dataset_id}")]

    async def find(self, intent: FineTuneIntent, files: Sequence[str]) -> list[FineTuneJob]:
        """Look up jobs under the intent's ids, up to the first missing one."""
        jobs = []
        for attempt in range(_MOST_ATTEMPTS):
            job = await self.job(self._job_name(intent, attempt))
            if job is None:
                break
            jobs.append(job)
        return jobs

    async def job(self, job_id: str) -> FineTuneJob | None:
        """Return a job by its name within the account."""
        answer = await self._get(job_id)
        return None if answer is None else self._read(job_id, answer)

    async def create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Request a job under a unique id."""
        values = intent.hyper_parameters
        hyper_parameters = {
            "epochs": values.get("n_epochs"),
            "learningRate": values.get("learning_rate"),
            "loraRank": values.get("lora_rank"),
        }
        account = self._path("")
        tuned = intent.model.startswith(f"{account}models/")
        config = {
            "warmStartFrom" if tuned else "baseModel": intent.model,
            "outputModel": f"{account}models/{self._id(intent, attempt)}",
            **{name: value for name, value in hyper_parameters.items() if value is not None},
        }
        body: dict[str, Any] = {"dataset": file_id, "displayName": self._id(intent, attempt)}
        if intent.method == "dpo":
            body["trainingConfig"] = config
        else:
            body |= config
        collection = _COLLECTIONS[intent.method]
        path = self._path(f"{collection}?{collection[:-1]}Id={self._id(intent, attempt)}")
        answer = await self._control.request_json("POST", path, body)
        return self._read(self._job_name(intent, attempt), answer)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        await self._control.send("POST", self._path(f"{job_id}:cancel"), {})

    async def find_deployments(self, intent: DeploymentIntent) -> list[Deployment]:
        """Find deployments under the intent's ids, or the model on the configured one.

        A deleted deployment is listed for some days; its id is not free before.
        """
        if self.service.deployment is not None:
            return await self._find_loaded(intent)
        deployments = []
        for attempt in range(_MOST_ATTEMPTS):
            item = await self._get(f"deployments/{intent.name(attempt)}")
            if item is None:
                break
            deployments.append(self._read_deployment(item, intent, attempt))
        return deployments

    async def deploy(self, intent: DeploymentIntent, attempt: int) -> Deployment:
        """Load the model onto the configured deployment, or request a dedicated one."""
        body: dict[str, Any]
        if self.service.deployment is not None:
            body = {
                "model": intent.model,
                "deployment": self._shared,
                "displayName": intent.name(attempt),
            }
            answer = await self._control.request_json("POST", self._path("deployedModels"), body)
            return self._read_loaded(answer, attempt)
        body = {
            "baseModel": intent.model,
            "displayName": intent.name(attempt),
            "minReplicaCount": 0,
            "maxReplicaCount": 1,
        }
        if self.service.hardware is not None:
            body["acceleratorType"] = self.service.hardware
        path = self._path(f"deployments?deploymentId={intent.name(attempt)}")
        return self._read_deployment(
            await self._control.request_json("POST", path, body), intent, attempt
        )

    async def undeploy(self, deployment: Deployment) -> None:
        """Unload a model, or delete its deployment."""
        kind = "deployments" if self.service.deployment is None else "deployedModels"
        await self._control.send("DELETE", self._path(f"{kind}/{deployment.id}"))

    async def _find_loaded(self, intent: DeploymentIntent) -> list[Deployment]:
        items: list[dict[str, Any]] = []
        token = ""
        while True:
            page = f"&pageToken={token}" if token else ""
            answer = await self._control.request_json(
                "GET", self._path(f"deployedModels?pageSize=200{page}")
            )
            items += answer.get("deployedModels") or []
            token = answer.get("nextPageToken") or ""
            if not token:
                break
        deployments = [
            self._read_loaded(item, attempt)
            for item in items
            if item.get("deployment") == self._shared
            and (attempt := intent.attempt_of(str(item.get("displayName")))) is not None
        ]
        return sorted(deployments, key=lambda deployment: deployment.attempt)

    @property
    def _shared(self) -> str:
        deployment = str(self.service.deployment)
        return deployment if "/" in deployment else self._path(f"deployments/{deployment}")

    def _path(self, rest: str) -> str:
        return f"accounts/{self._required('account', 'my-account')}/{rest}"

    def _id(self, intent: FineTuneIntent, attempt: int) -> str:
        return f"ratchet-{intent.digest[:32]}-{attempt}"

    def _job_name(self, intent: FineTuneIntent, attempt: int) -> str:
        return f"{_COLLECTIONS[intent.method]}/{self._id(intent, attempt)}"

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            return await self._control.request_json("GET", self._path(path))
        except StatusError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _read(self, name: str, job: Mapping[str, Any]) -> FineTuneJob:
        state = job.get("state")
        if not isinstance(state, str):
            raise TransientError(f"fine-tune job {name}: got the state {state!r}, expected one")
        attempt = int(name.rpartition("-")[2])
        status = _STATES.get(state, "running")
        config = job.get("trainingConfig") or job
        model = config.get("outputModel") if status == "succeeded" else None
        reason = (job.get("status") or {}).get("message") if status == "failed" else None
        return FineTuneJob(name, status, model, reason, attempt)

    def _read_deployment(
        self, item: Mapping[str, Any], intent: DeploymentIntent, attempt: int
    ) -> Deployment:
        name = intent.name(attempt)
        called = f"{intent.model}#{self._path(f'deployments/{name}')}"
        return self._deployment(item, name, called, attempt)

    def _read_loaded(self, item: Mapping[str, Any], attempt: int) -> Deployment:
        loaded = str(item.get("name")).rpartition("/")[2]
        called = f"{item.get('model')}#{self._shared}"
        return self._deployment(item, loaded, called, attempt)

    def _deployment(
        self, item: Mapping[str, Any], name: str, called: str, attempt: int
    ) -> Deployment:
        state = item.get("state")
        if not isinstance(state, str):
            raise TransientError(f"{self.label}: deployment {name} has no 'state'")
        status = _DEPLOYMENTS.get(state, "pending")
        reason = (item.get("status") or {}).get("message") or state
        return Deployment(name, status, called, reason if status == "failed" else None, attempt)
