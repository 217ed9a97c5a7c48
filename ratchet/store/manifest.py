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
from ratchet.store.keys import SCHEMA_VERSION, stage_key

MANIFEST_NAME: Final = "manifest.json"
_END = b"\n}"


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


class IterationMetrics(_Frozen):
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
    metrics: tuple[IterationMetrics, ...] = ()
    fingerprint: Fingerprint
    parameters: dict[str, JsonValue]
    created: str
    seconds: float = Field(ge=0)
    run_id: str | None = None

    @property
    def size(self) -> int:
        """Bytes in all files together."""
        return sum(entry.size for entry in self.files.values())

    def computed_key(self) -> str:
        """Compute the key of what the manifest says; another than ``key`` if that is not true."""
        code = Fingerprint.of_modules(self.fingerprint.modules).digest
        return stage_key(self.stage, self.iteration, self.parameters, self.inputs, code)

    def to_bytes(self) -> bytes:
        """Write the manifest as JSON text whose last field is the SHA-256 of all before it."""
        content = json.loads(self.model_dump_json(by_alias=True))
        text = json.dumps(content, indent=1, ensure_ascii=False).encode()
        return text.removesuffix(_END) + _checksum(text)

    @classmethod
    def from_bytes(cls, text: bytes, key: str) -> Manifest:
        """Read a manifest, checking its checksum and that it belongs to ``key``.

        Raises
        ------
        DamagedStageError
            If it is not what :meth:`to_bytes` wrote, byte for byte.
        StoreError
            If it is whole but of another schema, i.e. written by another version.
        """
        length = len(_checksum(b""))
        body = text[:-length] + _END
        if text[-length:] != _checksum(body):
            raise DamagedStageError(f"{MANIFEST_NAME} does not match its checksum")
        try:
            manifest = cls.model_validate_json(body)
        except ValidationError as error:
            _check_schema(json.loads(body).get("schema"), key)
            raise DamagedStageError(f"{MANIFEST_NAME} has wrong fields: {error}") from error
        _check_schema(manifest.schema_version, key)
        if manifest.key != key:
            raise DamagedStageError(f"{MANIFEST_NAME} belongs to stage {manifest.key}")
        return manifest


def metric_points(
    metrics: Sequence[IterationMetrics | Mapping[str, Any]],
) -> tuple[IterationMetrics, ...]:
    """Take metrics as points or as ``{"iteration": i, "values": {...}}``."""
    return tuple(
        point if isinstance(point, IterationMetrics) else IterationMetrics.model_validate(point)
        for point in metrics
    )


def _checksum(text: bytes) -> bytes:
    return b',\n "checksum": "' + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'


def _check_schema(schema: object, key: str) -> None:
    if schema != SCHEMA_VERSION:
        raise StoreError(
            f"stage {key}: its manifest has schema {schema!r}, this version of Ratchet reads"
            f" {SCHEMA_VERSION}. Use the version that wrote it, or another store."
        )
