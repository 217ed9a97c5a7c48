"""What a fine-tune job is meant to do, and what became of it, as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

FineTuneMethod: TypeAlias = Literal["supervised", "dpo"]
JobStatus: TypeAlias = Literal["pending", "running", "succeeded", "failed", "cancelled"]

AUTO_EPOCHS = 3
"""Epochs that a job is taken to have where they are left to the service."""

_STATUSES: Mapping[str, JobStatus] = {
    "validating_files": "pending",
    "queued": "pending",
    "pending": "pending",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
}


@dataclass(frozen=True)
class FineTuneIntent:
    """All that decides a fine-tune job; two jobs with one digest would be the same job.

    ``file_sha256`` is the hash of the training file's bytes. ``hyper_parameters`` holds what is
    not left to the service. ``suffix`` becomes a part of the new model's name.
    """

    model: str
    method: FineTuneMethod
    file_sha256: str
    hyper_parameters: Mapping[str, int | float] = field(default_factory=dict)
    suffix: str | None = None
    seed: int | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the intent's canonical JSON, 64 hexadecimal digits."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """The training file's name at the service: by it, it is found again."""
        return f"ratchet-{self.file_sha256}-{self.digest[:16]}.jsonl"

    def metadata(self, attempt: int) -> dict[str, str]:
        """Return what is sent with a job, so that it is found again.

        ``attempt`` counts from 0, one more for each job that failed or was cancelled.
        """
        return {
            "ratchet_intent": self.digest,
            "ratchet_attempt": str(attempt),
            "idempotency_key": f"{self.digest}:{attempt}",
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the intent as plain data."""
        return {
            "model": self.model,
            "method": self.method,
            "file_sha256": self.file_sha256,
            "hyper_parameters": dict(self.hyper_parameters),
            "suffix": self.suffix,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FineTuneIntent:
        """Make the intent of plain data; the inverse of :meth:`to_dict`."""
        return cls(**data)


@dataclass(frozen=True)
class FineTuneJob:
    """A job as the service last described it.

    ``error`` is the service's reason; ``attempt`` counts the intent's jobs from 0, and
    ``trained_tokens`` is what is paid for. ``steps`` are those done and those there are, where the
    service was asked for them and says so.
    """

    id: str
    status: JobStatus
    fine_tuned_model: str | None = None
    error: str | None = None
    attempt: int = 0
    trained_tokens: int | None = None
    steps: tuple[int, int] | None = None

    @property
    def standing(self) -> str:
        """How far it is, as people read it: "queued", "running, step 40 of 120"."""
        if self.status == "running" and self.steps is not None:
            return f"running, step {self.steps[0]} of {self.steps[1]}"
        return "queued" if self.status == "pending" else self.status

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ("succeeded", "failed", "cancelled")

    @property
    def is_lost(self) -> bool:
        """Whether it ended without a model."""
        return self.status in ("failed", "cancelled")


def job_status(status: str) -> JobStatus:
    """Turn a service's word for a status into ours; one that we don't know is not final."""
    return _STATUSES.get(status, "running")
