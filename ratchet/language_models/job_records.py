"""What was asked of a service, written down before it is asked.

A service may list a job only some time after it has taken it. Who is killed in between would find
no job and make another; the record says that there may be one, and since when.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from ratchet.errors import StateError
from ratchet.tracking.files import write_atomically


class Intent(Protocol):
    """What is to be made; two with one digest are the same."""

    @property
    def digest(self) -> str: ...  # noqa: D102 -- see the class

    def to_dict(self) -> dict[str, Any]: ...  # noqa: D102

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A request to make a job: which attempt, on which file, when (seconds since 1970).

    ``job_id`` is the job's once it is known; until then the service may have taken it or not.
    ``intent`` says what was asked for. Of a deployment the model stands for the file.
    """

    intent: Intent
    attempt: int
    file_id: str
    asked_at: float
    job_id: str | None = None

    def open_seconds(self, settle_seconds: float) -> float:
        """Return for how long from now its job may still begin to show in the service's list."""
        if self.job_id is not None:
            return 0.0
        return min(settle_seconds, self.asked_at + settle_seconds - time.time())


class JobRecordFile:
    """The record of an intent's last request to an endpoint. It is on the disk when written.

    Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None, endpoint: str, intent: Intent) -> None:
        self._intent = intent
        place = hashlib.sha256(endpoint.encode()).hexdigest()[:12]
        self._path = None if folder is None else folder / f"{intent.digest}-{place}.json"

    def read(self) -> JobRecord | None:
        """Read the record, if there is one.

        Raises
        ------
        StateError
            If the file holds something else.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            content = json.loads(self._path.read_bytes())
            intent = self._intent.from_dict(content.pop("intent"))
            return JobRecord(intent, **content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(
                f"{self._path}: expected the record of a request for a fine-tune job, got {error}."
                " See in the service's list whether there is a job of that time, then remove it."
            ) from error

    def write(self, record: JobRecord) -> None:
        """Replace the record; it survives a power cut."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {**asdict(record), "intent": record.intent.to_dict()}
        write_atomically(self._path, json.dumps(content, indent=1))

    def confirm(self, record: JobRecord | None, job_id: str) -> None:
        """Write down which job the request has made."""
        if record is not None and record.job_id != job_id:
            self.write(replace(record, job_id=job_id))

    def remove(self) -> None:
        """Forget a request that was refused."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
