"""Fine-tune intents and jobs, as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

FineTuneMethod: TypeAlias = Literal["supervised", "dpo"]
JobStatus: TypeAlias = Literal["pending", "running", "succeeded", "failed", "cancelled"]

AUTO_EPOCHS = 3
"""Assumed number of epochs where the service chooses it."""

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
    """All inputs of a fine-tune job; equal digests mean the same job.

    ``file_sha256`` is the hash of the training file. ``hyper_parameters`` contains those not left
    to the service. ``suffix`` becomes part of the new model's name.
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
        """The training file's name at the service, by which it is found again."""
        return f"ratchet-{self.file_sha256}-{self.digest[:16]}.jsonl"

    def metadata(self, attempt: int) -> dict[str, str]:
        """Return the metadata sent with a job, by which it is found again.

        ``attempt`` counts from 0, plus one for each job that failed or was cancelled.
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
        """Build the intent from plain data; the inverse of :meth:`to_dict`."""
        return cls(**data)


@dataclass(frozen=True)
class FineTuneJob:
    """A job as last reported by the service.

    ``error`` is the service's reason; ``attempt`` counts the intent's jobs from 0;
    ``trained_tokens`` are billed. ``steps`` are completed and total steps, if requested and
    reported.
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
        """The status for display: "queued", "running, step 40 of 120"."""
        if self.status == "running" and self.steps is not None:
            return f"running, step {self.steps[0]} of {self.steps[1]}"
        return "queued" if self.status == "pending" else self.status

    @property
    def is_final(self) -> bool:
        """Whether its status is final."""
        return self.status in ("succeeded", "failed", "cancelled")

    @property
    def is_lost(self) -> bool:
        """Whether it ended without a model."""
        return self.status in ("failed", "cancelled")


def job_status(status: str) -> JobStatus:
    """Convert a service's status to Ratchet's; an unknown one is not final."""
    return _STATUSES.get(status, "running")
