"""Creation requests, recorded before they are sent to a service.

A service may list an accepted job only after a delay. A process killed within it would find no job
and create another; the record shows that one may exist, and since when.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from ratchet.errors import StateError
from ratchet.tracking.boot_clock import BootTime
from ratchet.tracking.files import write_atomically


class Intent(Protocol):
    """A resource to create; equal digests mean the same resource."""

    @property
    def digest(self) -> str: ...  # noqa: D102 -- see the class

    def to_dict(self) -> dict[str, Any]: ...  # noqa: D102

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A creation request: attempt, training file, and time (seconds since 1970).

    ``job_id`` is set once it is confirmed; until then the service may or may not have accepted the
    job. ``intent`` is its content. For a deployment, ``file_id`` is the model. ``boot`` and
    ``boot_seconds`` are the time on a clock that adjustments do not move; records of earlier
    releases lack them.
    """

    intent: Intent
    attempt: int
    file_id: str
    asked_at: float
    job_id: str | None = None
    boot: str = ""
    boot_seconds: float = 0.0

    @classmethod
    def now(cls, intent: Intent, attempt: int, file_id: str) -> Self:
        """Return the record of a request that is sent now."""
        now = BootTime.now()
        return cls(intent, attempt, file_id, now.system, boot=now.boot, boot_seconds=now.seconds)

    def open_seconds(self, settle_seconds: float) -> float:
        """Return the remaining seconds in which the service may still list its job.

        No jump of the system's time shortens them; after another boot, or on another host, they
        start again.
        """
        if self.job_id is not None:
            return 0.0
        elapsed = BootTime(self.boot, self.boot_seconds, self.asked_at).elapsed()
        return settle_seconds if elapsed is None else max(0.0, settle_seconds - elapsed)


class JobRecordFile:
    """The durable record of an intent's last request to an endpoint.

    Not stored without a folder.
    """

    def __init__(self, folder: Path | None, endpoint: str, intent: Intent) -> None:
        self._intent = intent
        name = hashlib.sha256(endpoint.encode()).hexdigest()[:12]
        self._path = None if folder is None else folder / f"{intent.digest}-{name}.json"

    def read(self) -> JobRecord | None:
        """Read the record, if it exists."""
        if self._path is None or not self._path.exists():
            return None
        try:
            content = json.loads(self._path.read_bytes())
            intent = self._intent.from_dict(content.pop("intent"))
            return JobRecord(intent, **content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(
                f"{self._path}: invalid record of a fine-tune request: {error}."
                " Check the service's list for a job of that time, then delete the file."
            ) from error

    def write(self, record: JobRecord) -> None:
        """Replace the record durably."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {**asdict(record), "intent": record.intent.to_dict()}
        write_atomically(self._path, json.dumps(content, indent=1))

    def confirm(self, record: JobRecord | None, job_id: str) -> None:
        """Record the id of the created job."""
        if record is not None and record.job_id != job_id:
            self.write(replace(record, job_id=job_id))

    def remove(self) -> None:
        """Delete the record of a refused request."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
