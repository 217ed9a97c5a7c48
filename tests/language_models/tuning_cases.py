"""The services of fine-tuning backends in tests, each in its documented format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from local_services import FineTuneService
from tuning_services import (
    AzureService,
    FireworksService,
    LoadedFireworksService,
    TogetherService,
    VllmService,
)

from ratchet.language_models.endpoints import Endpoint


@dataclass(frozen=True)
class Case:
    """A backend, its service, and that service's vocabulary."""

    backend: str
    service: Callable[[], Any]
    parameters: Callable[[Any], dict[str, Any]]
    statuses: dict[str, str]
    state: str = "status"
    model: str = "fine_tuned_model"
    path: Callable[[Any], str] = lambda service: service.url
    api_version: str | None = None
    deploys: bool = True
    failing: dict[str, str] = field(default_factory=dict)

    def endpoint(self, service: Any) -> Endpoint:
        return Endpoint(self.path(service), "MODEL_KEY", self.api_version, timeout_seconds=0.5)

    def finish(self, service: Any, index: int, status: str) -> None:
        """Let a job end with a status in the service's terms."""
        word = next(word for word, ours in self.statuses.items() if ours == status)
        service.jobs[index][self.state] = word
        if status == "succeeded":
            service.jobs[index].setdefault(self.model, None)
            service.jobs[index][self.model] = service.jobs[index][self.model] or f"tuned-{index}"


OPENAI = {
    "validating_files": "pending",
    "queued": "pending",
    "running": "running",
    "paused": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
FIREWORKS = {
    "JOB_STATE_CREATING": "pending",
    "JOB_STATE_VALIDATING": "pending",
    "JOB_STATE_RUNNING": "running",
    "JOB_STATE_WRITING_RESULTS": "running",
    "JOB_STATE_RE_QUEUEING": "running",
    "JOB_STATE_COMPLETED": "succeeded",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
}
CASES = {
    "openai": Case("openai", FineTuneService, lambda _: {}, OPENAI, deploys=False),
    "ratchet": Case("ratchet", FineTuneService, lambda _: {}, OPENAI, deploys=False),
    "azure": Case(
        "azure",
        AzureService,
        lambda service: {
            "url": service.url,
            "api_key_name": "OTHER_KEY",
            "account": AzureService.ACCOUNT,
        },
        OPENAI | {"canceled": "cancelled"},
        api_version="2025-01-01",
        failing={"ends_as": "Failed"},
    ),
    "together": Case(
        "together",
        TogetherService,
        lambda _: {"hardware": "1x_nvidia_h100_80gb_sxm"},
        {
            "pending": "pending",
            "queued": "pending",
            "running": "running",
            "compressing": "running",
            "uploading": "running",
            "cancel_requested": "running",
            "completed": "succeeded",
            "error": "failed",
            "cancelled": "cancelled",
        },
        model="model_output_name",
        failing={"ends_as": "ERROR"},
    ),
    "fireworks": Case(
        "fireworks",
        FireworksService,
        lambda service: {"url": service.url, "account": "acct"},
        FIREWORKS,
        state="state",
        model="outputModel",
        failing={"ends_as": "FAILED"},
    ),
    "fireworks loading": Case(
        "fireworks",
        LoadedFireworksService,
        lambda service: {"url": service.url, "account": "acct", "deployment": "shared"},
        FIREWORKS,
        state="state",
        model="outputModel",
        failing={"ends_as": "UNDEPLOYED"},
    ),
    "vllm": Case(
        "vllm",
        VllmService,
        lambda service: {"url": service.trainer.url, "api_key_name": "OTHER_KEY"},
        OPENAI,
    ),
}
