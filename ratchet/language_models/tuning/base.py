"""What a service has to say for models to be fine-tuned by it: ``TuningBackend``.

A backend has a service's words only. What must hold of all of them (nothing is made twice, what
was asked for is known after a kill, what may pass is tried again) is said once, in
``fine_tuning`` and ``made_once``.
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
    """All that decides a deployment: the model that is to become callable."""

    model: str

    @property
    def digest(self) -> str:
        """A SHA-256 of the model's name, 64 hexadecimal digits."""
        return hashlib.sha256(f"deployment:{self.model}".encode()).hexdigest()

    def name(self, attempt: int) -> str:
        """Return what an attempt's deployment is called: by it, it is found again."""
        name = f"ratchet-{self.digest[:20]}"
        return f"{name}-{attempt}" if attempt else name

    def attempt_of(self, name: str) -> int | None:
        """Return which attempt's a deployment is; None if it is not the intent's."""
        if name == self.name(0):
            return 0
        number = name.removeprefix(f"{self.name(0)}-")
        return int(number) if number != name and number.isdigit() else None

    def to_dict(self) -> dict[str, Any]:
        """Return the intent as plain data."""
        return {"model": self.model}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeploymentIntent:
        """Make the intent of plain data; the inverse of :meth:`to_dict`."""
        return cls(**data)


@dataclass(frozen=True)
class Deployment:
    """A model made callable, as the service last described it.

    ``called_as`` is what requests for completions name; ``attempt`` counts the intent's
    deployments from 0.
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


class TuningBackend(ABC):
    """A service that makes models of training files.

    Each method asks once, and raises :class:`ratchet.language_models.retrying.TransientError` for
    what may pass, another :class:`ratchet.errors.LanguageModelError` for what will not. None of
    them waits, remembers or tries again.

    Parameters
    ----------
    endpoint
        Where the models are asked.
    service
        What the agent's ``fine_tuning_service`` says.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    """The fields of ``fine_tuning_service`` that it reads, besides ``backend``."""
    hyper_parameters: ClassVar[frozenset[str]] = frozenset({"n_epochs", "batch_size", "beta"})
    """The fields of ``fine_tuning`` that its service takes."""
    lists_at_once: ClassVar[bool] = False
    """Whether what was taken shows at once, or can't be taken a second time."""
    deploys: bool = False
    """Whether a trained model must be made callable first."""

    def __init__(self, endpoint: Endpoint, service: FineTuningServiceParameters) -> None:
        self.endpoint = endpoint
        self.service = service

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    @property
    def label(self) -> str:
        """The name, for messages and records, of the service that makes the jobs."""
        return self.endpoint.label

    @property
    def is_free(self) -> bool:
        """Whether jobs cost nothing."""
        return False

    def check(self) -> None:  # noqa: B027 -- most need nothing
        """Check that there is what jobs and deployments need, before either is asked for.

        Raises
        ------
        ParameterError
            With the name of the missing parameter.
        """

    @abstractmethod
    async def deliver(self, intent: FineTuneIntent, content: bytes) -> list[str]:
        """Return ids of the intent's training file at the service; bring it there if it isn't.

        Raises
        ------
        TransientError
            Also while a file that is there can't be used yet.
        """

    @abstractmethod
    async def find(self, intent: FineTuneIntent, files: Sequence[str]) -> list[FineTuneJob]:
        """List the intent's jobs, oldest first, each with its attempt.

        ``files`` are ids of its training file: all that finds a job where services keep no more.
        """

    @abstractmethod
    async def job(self, job_id: str) -> FineTuneJob | None:
        """Return how a job is; None if the service says that there is none."""

    @abstractmethod
    async def create(self, intent: FineTuneIntent, file_id: str, attempt: int) -> FineTuneJob:
        """Ask for a job."""

    @abstractmethod
    async def cancel(self, job_id: str) -> None:
        """Ask that a job ends without a model."""

    async def steps(self, job: FineTuneJob) -> tuple[int, int] | None:
        """Return how many steps a running job has done and has, where the service says so.

        Nothing depends on it, so that it fails in silence.
        """
        return None

    async def health(self) -> Mapping[str, Any]:
        """Return what the service says of itself; nothing where it doesn't speak of it."""
        return {}

    async def find_deployments(self, intent: DeploymentIntent) -> list[Deployment]:
        """List the intent's deployments, oldest first."""
        return []

    async def deploy(self, intent: DeploymentIntent, attempt: int) -> Deployment:
        """Ask that a model becomes callable."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to deploy")

    async def undeploy(self, deployment: Deployment) -> None:
        """Ask that a model is not callable any more."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to undeploy")

    def _required(self, field: str, example: str) -> str:
        value: str | None = getattr(self.service, field)
        if value is None:
            raise ParameterError(
                f"fine_tuning_service.{field} of {self.label}: got none, expected one, such as"
                f" {example!r}. Finished work is kept: set it and run the same command again."
            )
        return value
