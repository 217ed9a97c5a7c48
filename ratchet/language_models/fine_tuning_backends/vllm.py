"""Models trained by Ratchet's service and served by a vLLM that loads their adapters.

``POST /v1/load_lora_adapter`` with ``lora_name`` and ``lora_path``, ``POST
/v1/unload_lora_adapter``; ``GET /v1/models`` lists loaded ones. vLLM must be started with
``--enable-lora`` and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True``; it loses loaded adapters when it
ends. Names in use are refused, so that none is loaded twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import quote

from ratchet.errors import ParameterError
from ratchet.language_models.connection import Connection, StatusError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob
from ratchet.language_models.fine_tuning_backends.base import (
    Deployment,
    DeploymentIntent,
    FineTuningBackend,
)
from ratchet.language_models.fine_tuning_backends.openai_api import RatchetBackend
from ratchet.language_models.fine_tuning_backends.registry import register_tuning_backend
from ratchet.language_models.retrying import TransientError
from ratchet.parameters.chat_agents import FineTuningServiceParameters

_ADAPTER_PATH = "{root}"


@register_tuning_backend("vllm")
class VllmBackend(FineTuningBackend):
    """A vLLM at the agent's ``base_url``; ``url`` is the service that trains its adapters."""

    reads: ClassVar[frozenset[str]] = frozenset({"url", "api_key_name", "adapter_path"})
    hyper_parameters: ClassVar[frozenset[str]] = RatchetBackend.hyper_parameters
    lists_at_once: ClassVar[bool] = True
    deploys = True

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        super().__init__(endpoint, service)
        url = self._required("url", "http://127.0.0.1:8399/v1")
        training = Endpoint(url, service.api_key_name)
        self._trainer = RatchetBackend(training, FineTuningServiceParameters())
        self._training = Connection(training)
        self._connection = Connection(endpoint)

    @property
    def label(self) -> str:
        """The name of the training service."""
        return self._trainer.label

    @property
    def is_free(self) -> bool:
        """Always True: jobs run on the user's machine."""
        return True

    async def deliver(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """Upload the training file to the training service."""
        return await self._trainer.deliver(intent, content)

    async def find(self, intent: FineTuneIntent, files: Sequence[str]) -> list[FineTuneJob]:
        """List the intent's jobs."""
        return await self._trainer.find(intent, files)

    async def job(self, job_id: str) -> FineTuneJob | None:
        """Return a job."""
        return await self._trainer.job(job_id)

    async def create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Request a job."""
        return await self._trainer.create(intent, file_id, attempt)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        await self._trainer.cancel(job_id)

    async def steps(self, job: FineTuneJob) -> tuple[int, int] | None:
        """Return a running job's completed and total steps."""
        return await self._trainer.steps(job)

    async def health(self) -> Mapping[str, Any]:
        """Return the training service's health report."""
        return await self._trainer.health()

    async def find_deployments(self, intent: DeploymentIntent) -> list[Deployment]:
        """Return the adapter of the model's name, if it is loaded."""
        items = (await self._connection.request_json("GET", "models")).get("data")
        if not isinstance(items, list):
            raise TransientError(f"{self.endpoint.label}: the list of models has no 'data'")
        loaded = any(item.get("id") == intent.model for item in items)
        return [_loaded(intent.model)] if loaded else []

    async def deploy(self, intent: DeploymentIntent, attempt: int) -> Deployment:
        """Load the trained adapter under the model's name."""
        model = await self._training.request_json("GET", f"models/{quote(intent.model, safe=':')}")
        root = model.get("root")
        template = self.service.adapter_path or _ADAPTER_PATH
        if not isinstance(root, str) and ("{root}" in template or "{folder}" in template):
            raise ParameterError(
                f"fine_tuning_service.adapter_path: {self.label} does not report where"
                f" {intent.model!r} is stored; expected a path without {{root}} or {{folder}}."
            )
        folder = PurePosixPath(root or "").name
        path = template.format(root=root, folder=folder, model=intent.model)
        return await self.load(intent.model, path)

    async def load(self, name: str, path: str) -> Deployment:
        """Load the adapter of a folder, trained anywhere; ``path`` is as vLLM sees it."""
        body = {"lora_name": name, "lora_path": path}
        try:
            await self._connection.send("POST", "load_lora_adapter", body)
        except (TransientError, StatusError) as error:  # vLLM responds with 500
            if "max_lora_rank" not in str(error):
                raise
            raise StatusError(
                f"{error} The ranks of successive jobs add up: restart vLLM with a larger"
                " --max-lora-rank."
            ) from None
        return _loaded(name)

    async def undeploy(self, deployment: Deployment) -> None:
        """Unload an adapter."""
        await self._connection.send("POST", "unload_lora_adapter", {"lora_name": deployment.id})


def _loaded(model: str) -> Deployment:
    return Deployment(model, "ready", model)
