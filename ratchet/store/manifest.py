"""The manifest of a finished stage: what it is, what it was made of, and how to check it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)

from ratchet.errors import DamagedStageError, StoreError
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import SCHEMA_VERSION

MANIFEST_NAME: Final = "manifest.json"


def _within(path: str) -> str:
    """Refuse the path of a file that would lie outside the stage's folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == MANIFEST_NAME:
        raise ValueError(f"{path!r} is no path of a file within a stage")
    return path


RelativePath = Annotated[str, AfterValidator(_within)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", populate_by_name=True
    )


class FileEntry(_Frozen):
    """Size in bytes and SHA-256 of one file."""

    size: int = Field(ge=0)
    sha256: Sha256


class MetricPoint(_Frozen):
    """The metrics of one iteration."""

    iteration: int
    values: dict[str, float]


class Manifest(_Frozen):
    """All that is known of a finished stage.

    ``files`` maps paths within the stage's folder (with ``/``) to their entries. ``metrics`` are
    the points of the iterations after ``start_iteration`` up to ``iteration``. ``created`` is
    the time of the commit (ISO 8601, UTC), ``seconds`` what the work took; they, ``run_id`` and
    ``parameters`` are for readers: the key alone says what the stage is.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    key: Sha256
    stage: str
    iteration: int = Field(ge=0)
    start_iteration: int = Field(ge=0)
    inputs: dict[str, str | int]
    files: dict[RelativePath, FileEntry]
    metrics: tuple[MetricPoint, ...] = ()
    fingerprint: Fingerprint
    parameters: dict[str, JsonValue]
    created: str
    seconds: float = Field(ge=0)
    run_id: str | None = None

    @property
    def size(self) -> int:
        """Bytes in all files together."""
        return sum(entry.size for entry in self.files.values())

    def to_bytes(self) -> bytes:
        """Write the manifest as JSON text, with a checksum over the rest of it."""
        content = json.loads(self.model_dump_json(by_alias=True))
        content["checksum"] = _checksum(content)
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes, key: str) -> Manifest:
        """Read a manifest, checking its checksum and that it belongs to ``key``.

        Raises
        ------
        DamagedStageError
            If it is not what :meth:`to_bytes` wrote.
        StoreError
            If it is whole but of another schema, i.e. written by another version.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise DamagedStageError(f"{MANIFEST_NAME} is not JSON: {error}") from error
        if not isinstance(content, dict) or "checksum" not in content:
            raise DamagedStageError(f"{MANIFEST_NAME} has no checksum")
        checksum = content.pop("checksum")
        if checksum != _checksum(content):
            raise DamagedStageError(f"{MANIFEST_NAME} does not match its checksum")
        if content.get("schema") != SCHEMA_VERSION:
            raise StoreError(
                f"stage {key}: its manifest has schema {content.get('schema')!r}, this version of"
                f" Ratchet reads {SCHEMA_VERSION}. Use the version that wrote it, or another store."
            )
        try:
            manifest = cls.model_validate(content)
        except ValidationError as error:
            raise DamagedStageError(f"{MANIFEST_NAME} has wrong fields: {error}") from error
        if manifest.key != key:
            raise DamagedStageError(f"{MANIFEST_NAME} belongs to stage {manifest.key}")
        return manifest


def metric_points(
    metrics: Sequence[MetricPoint | Mapping[str, Any]],
) -> tuple[MetricPoint, ...]:
    """Take metrics as points or as ``{"iteration": i, "values": {...}}``."""
    return tuple(
        point if isinstance(point, MetricPoint) else MetricPoint.model_validate(point)
        for point in metrics
    )


def _checksum(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(text).hexdigest()
