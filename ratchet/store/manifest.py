"""Manifest of a finished stage.

It contains the stage's identity, inputs, metrics and files, with sizes and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ratchet.errors import DamagedStageError, StoreError
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import SCHEMA_VERSION, stage_key

MANIFEST_NAME: Final = "manifest.json"
_END = b"\n}"
_IDENTITY = re.compile(rb'\n "stage": ("(?:[^"\\]|\\.)*"),\n "iteration": (\d+),')


def _within(path: str) -> str:
    """Refuse the path of a file that would be outside the stage's folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == MANIFEST_NAME:
        raise ValueError(f"{path!r} is not the path of a file within a stage")
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
    """Description of a finished stage.

    ``files`` maps paths within the stage's folder (with ``/``) to their entries, including those of
    ``removed`` files, which were deleted to free space and could be computed again. ``metrics`` are
    the points of the iterations after ``start_iteration`` up to ``iteration``. ``created`` is
    the time of the commit (ISO 8601, UTC), ``seconds`` the duration of the work, ``versions`` those
    of Ratchet and the libraries that computed the stage. They, ``run_id`` and ``parameters`` are
    informative: only the key identifies the stage.
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
    versions: dict[str, str] = Field(default_factory=dict)
    removed: tuple[RelativePath, ...] = ()

    @property
    def stored_files(self) -> dict[str, FileEntry]:
        """The entries of the files that were not removed."""
        return {name: entry for name, entry in self.files.items() if name not in self.removed}

    @property
    def size(self) -> int:
        """Total bytes of all stored files."""
        return sum(entry.size for entry in self.stored_files.values())

    def computed_key(self) -> str:
        """Compute the key from the manifest's other fields; not ``key`` if one is wrong."""
        code = Fingerprint.from_modules(self.fingerprint.modules).digest
        return stage_key(self.stage, self.iteration, self.parameters, self.inputs, code)

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON text; its last field is the SHA-256 of the text before it."""
        content = json.loads(self.model_dump_json(by_alias=True))
        if not self.removed:
            del content["removed"]  # as in manifests of earlier versions
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
            If it is intact but has another schema, written by another version of Ratchet.
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


def read_identity(text: bytes) -> tuple[str, int] | None:
    """Return a stage's name and iteration from its manifest's text; None if they are damaged."""
    match = _IDENTITY.search(text)
    return None if match is None else (json.loads(match[1]), int(match[2]))


def metric_points(
    metrics: Sequence[IterationMetrics | Mapping[str, Any]],
) -> tuple[IterationMetrics, ...]:
    """Convert metrics, which may be points or ``{"iteration": i, "values": {...}}``."""
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
