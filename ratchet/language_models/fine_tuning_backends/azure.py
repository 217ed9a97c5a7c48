"""Azure's variant of OpenAI's API, with the deployment that a trained model requires.

Jobs are created at the resource (``{base_url}/openai/fine_tuning/jobs``). Deployments are created
by the management plane ("Deployments - Create Or Update": ``PUT``, ``GET`` and ``DELETE
{account}/deployments/{name}``), whose ``properties.provisioningState`` shows when it is ready. A
deployment's name contains the model's digest, so that a repeated request is one deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ratchet.language_models.connection import Connection
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tuning_backends.base import (
    Deployment,
    DeploymentIntent,
    DeploymentStatus,
)
from ratchet.language_models.fine_tuning_backends.openai_api import OpenAiBackend
from ratchet.language_models.fine_tuning_backends.registry import register_tuning_backend
from ratchet.language_models.retrying import TransientError
from ratchet.parameters.chat_agents import FineTuningServiceParameters

MANAGEMENT_URL = "https://management.azure.com"
API_VERSION = "2024-10-01"
_ACCOUNT = (
    "/subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.CognitiveServices/accounts/NAME"
)
_FINAL: Mapping[str, DeploymentStatus] = {
    "succeeded": "ready",
    "failed": "failed",
    "canceled": "failed",
    "disabled": "failed",
}
_UNREAD = ("pending", "running", "uploading")
"""Statuses of a training file before it can be used."""


@register_tuning_backend("azure")
class AzureBackend(OpenAiBackend):
    """A resource of Azure OpenAI.

    A deployment is billed by the hour until it is deleted; the price table does not contain this.
    """

    reads: ClassVar[frozenset[str]] = frozenset(
        {"url", "api_key_name", "account", "hardware", "capacity"}
    )
    deploys = True

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        super().__init__(endpoint, service)
        management = Endpoint(service.url or MANAGEMENT_URL, service.api_key_name)
        self._management = Connection(management)

    def check(self) -> None:
        """Check that the deployments' account and token are set."""
        self._required("account", _ACCOUNT)
        self._required("api_key_name", "AZURE_MANAGEMENT_TOKEN")

    def _usable(self, files: list[Any]) -> list[Any]:
        """Exclude files that are still processed: a job on them would be refused."""
        usable = [file for file in files if file.status not in _UNREAD]
        if not usable:
            raise TransientError(
                f"{self.label}: the training file {files[0].id} is still being processed"
            )
        return usable

    async def find_deployments(self, intent: DeploymentIntent) -> list[Deployment]:
        """List the resource's deployments of the intent's names."""
        answer = await self._management.request_json("GET", self._path(""))
        items = answer.get("value")
        if not isinstance(items, list):
            raise TransientError(f"{self.label}: the list of deployments has no 'value'")
        deployments = [
            self._read(item, attempt)
            for item in items
            if (attempt := intent.attempt_of(str(item["name"]))) is not None
        ]
        return sorted(deployments, key=lambda deployment: deployment.attempt)

    async def deploy(self, intent: DeploymentIntent, attempt: int) -> Deployment:
        """Request a deployment by name."""
        body = {
            "sku": {
                "name": self.service.hardware or "Standard",
                "capacity": self.service.capacity or 1,
            },
            "properties": {"model": {"format": "OpenAI", "name": intent.model, "version": "1"}},
        }
        path = self._path(f"/{intent.name(attempt)}")
        return self._read(await self._management.request_json("PUT", path, body), attempt)

    async def undeploy(self, deployment: Deployment) -> None:
        """Delete a deployment."""
        await self._management.send("DELETE", self._path(f"/{deployment.id}"))

    def _path(self, rest: str) -> str:
        account = self._required("account", _ACCOUNT).strip("/")
        return f"{account}/deployments{rest}?api-version={API_VERSION}"

    def _read(self, item: Mapping[str, Any], attempt: int) -> Deployment:
        name = str(item.get("name"))
        properties = item.get("properties") or {}
        state = properties.get("provisioningState")
        if not isinstance(state, str):
            raise TransientError(f"{self.label}: deployment {name} has no provisioningState")
        status = _FINAL.get(state.lower(), "pending")
        error = state if status == "failed" else None
        return Deployment(name, status, name, error, attempt)
