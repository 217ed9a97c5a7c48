"""``FineTuningBackend``: the interface of a fine-tuning service.

A backend only translates to a service's API. Guarantees common to all (exactly-once creation,
recovery after a kill, retries) are implemented in ``fine_tuning`` and ``exactly_once``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ratchet.errors import ParameterError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob
from ratchet.parameters.chat_agents import FineTuningServiceParameters

DeploymentStatus = Literal["pending", "ready", "failed"]


@dataclass(frozen=True)
class DeploymentIntent:
    """All inputs of a deployment: the model to make callable."""

    model: str

    @property
    def digest(self) -> str:
        """A SHA-256 of the model's name, 64 hexadecimal digits."""
        return hashlib.sha256(f"deployment:{self.model}".encode()).hexdigest()

    def name(self, attempt: int) -> str:
        """Return the name of an attempt's deployment, by which it is found again."""
        name = f"ratchet-{self.digest[:20]}"
        return f"{name}-{attempt}" if attempt else name

    def attempt_of(self, name: str) -> int | None:
        """Return the attempt of a deployment; None if it is not the intent's."""
        if name == self.name(0):
            return 0
        number = name.removeprefix(f"{self.name(0)}-")
        return int(number) if number != name and number.isdigit() else None

    def to_dict(self) -> dict[str, Any]:
        """Return the intent as plain data."""
        return {"model": self.model}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeploymentIntent:
        """Build the intent from plain data; the inverse of :meth:`to_dict`."""
        return cls(**data)


@dataclass(frozen=True)
class Deployment:
    """A deployed model, as last reported by the service.

    ``called_as`` is its name in completion requests; ``attempt`` counts the intent's deployments
    from 0.
    """

    id: str
    status: DeploymentStatus
    called_as: str
    error: str | None = None
    attempt: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether it will never be callable."""
        return self.status == "failed"


class FineTuningBackend(ABC):
    """A service that fine-tunes models.

    Each method sends one request, and raises
    :class:`ratchet.language_models.retrying.TransientError` for transient failures, another
    :class:`ratchet.errors.LanguageModelError` for permanent ones. No method waits, stores state or
    retries.

    Parameters
    ----------
    endpoint
        The endpoint that serves the models.
    service
        The agent's ``fine_tuning_service``.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    """The fields of ``fine_tuning_service`` that it reads, in addition to ``backend``."""
    hyper_parameters: ClassVar[frozenset[str]] = frozenset({"n_epochs", "batch_size", "beta"})
    """The fields of ``fine_tuning`` that its service supports."""
    lists_at_once: ClassVar[bool] = False
    """Whether accepted requests are listed immediately, or cannot be accepted twice."""
    deploys: bool = False
    """Whether a trained model must be deployed before it is called."""

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        self.endpoint = endpoint
        self.service = service

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    @property
    def label(self) -> str:
        """The name, for messages and records, of the service that runs the jobs."""
        return self.endpoint.label

    @property
    def is_free(self) -> bool:
        """Whether jobs are free."""
        return False

    def check(self) -> None:  # noqa: B027 -- most need nothing
        """Check the prerequisites of jobs and deployments before either is requested.

        Raises
        ------
        ParameterError
            With the name of the missing parameter.
        """

    @abstractmethod
    async def deliver(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """Return ids of the intent's training file at the service; upload it if missing.

        Raises
        ------
        TransientError
            Also while an uploaded file cannot be used yet.
        """

    @abstractmethod
    async def find(self, intent: FineTuneIntent, files: Sequence[str]) -> list[FineTuneJob]:
        """List the intent's jobs, oldest first, each with its attempt.

        ``files`` are ids of its training file: the only way to find a job if a service stores no
        metadata.
        """

    @abstractmethod
    async def job(self, job_id: str) -> FineTuneJob | None:
        """Return a job's state; None if the service reports that it does not exist."""

    @abstractmethod
    async def create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Request a job."""

    @abstractmethod
    async def cancel(self, job_id: str) -> None:
        """Request a job's cancellation."""

    async def steps(self, job: FineTuneJob) -> tuple[int, int] | None:
        """Return a running job's completed and total steps, if the service reports them.

        For display only; failures are ignored.
        """
        return None

    async def health(self) -> Mapping[str, Any]:
        """Return the service's health report; empty if it has none."""
        return {}

    async def find_deployments(self, intent: DeploymentIntent) -> list[Deployment]:
        """List the intent's deployments, oldest first."""
        return []

    async def deploy(self, intent: DeploymentIntent, attempt: int) -> Deployment:
        """Request a model's deployment."""
        raise NotImplementedError(f"{type(self).__name__} does not support deployments")

    async def undeploy(self, deployment: Deployment) -> None:
        """Request the deletion of a model's deployment."""
        raise NotImplementedError(f"{type(self).__name__} does not support deployments")

    def _required(self, field: str, example: str) -> str:
        value: str | None = getattr(self.service, field)
        if value is None:
            raise ParameterError(
                f"fine_tuning_service.{field} of {self.label}: got none, expected one, such as"
                f" {example!r}. Finished work is stored: set it and run the same command again."
            )
        return value
