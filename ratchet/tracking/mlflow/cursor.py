"""How far the mirror has come: kept in the run folder as ``mlflow.json``.

Written before a batch is sent (in flight) and after it has arrived; whoever finds it in flight,
lost or made for another server compares with what MLflow has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, ValidationError

from ratchet.tracking.files import write_atomically


class ArmCursor(BaseModel):
    """What of one arm has arrived.

    ``sent`` metrics, in the order of the run folder, with the digest of their keys, steps and
    values; ``files`` maps artifact paths to content digests; ``model`` is the digest of the final
    state that was entered as a model. ``system`` counts metrics of the machine.
    """

    mlflow_run_id: str = ""
    sent: int = 0
    digest: str = ""
    in_flight: bool = False
    datasets: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    model: str = ""
    system: int = 0


class Cursor(BaseModel):
    """What of a run has arrived at one tracking server."""

    tracking_uri: str
    experiment_id: str = ""
    arms: dict[str, ArmCursor] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, tracking_uri: str) -> Self:
        """Read the cursor; an empty one if it is lost, damaged or of another server."""
        try:
            cursor = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return cls(tracking_uri=tracking_uri)
        return cursor if cursor.tracking_uri == tracking_uri else cls(tracking_uri=tracking_uri)

    def write(self, path: Path) -> None:
        """Write the cursor atomically."""
        write_atomically(path, self.model_dump_json(indent=1))


def metrics_digest(metrics: Sequence[tuple[str, int, float, int]]) -> str:
    """Return a digest of keys, steps and values; times do not count."""
    digest = hashlib.sha256()
    for key, step, value, _ in metrics:
        digest.update(f"{key}\t{step}\t{value!r}\n".encode())
    return digest.hexdigest()
