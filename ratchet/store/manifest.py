"""Manifest of a finished stage, and its comparison with a stage that is not stored.

It contains the stage's identity, inputs, metrics and files, with sizes and SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ratchet.errors import DamagedStageError, StoreError
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.keys import SCHEMA_VERSION, stage_key

MANIFEST_NAME: Final = "manifest.json"
_END = b"\n}"
_ABSENT = object()
_MAX_DIFFERENCES = 5


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

    ``files`` maps paths within the stage's folder (with ``/``) to their entries. ``metrics`` are
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

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def computed_key(self) -> str:
        """Compute the key from the manifest's other fields; not ``key`` if one is wrong."""
        code = Fingerprint.from_modules(self.fingerprint.modules).digest
        return stage_key(self.stage, self.iteration, self.parameters, self.inputs, code)

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON text; its last field is the SHA-256 of the text before it."""
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


class _Manifests(Protocol):
    """The part of a store that :func:`explain_miss` uses."""

    def iterate(self) -> Iterator[Manifest]: ...


def explain_miss(
    store: _Manifests,
    stage: str,
    iteration: int,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str | int],
    fingerprint: Fingerprint,
) -> str:
    """Return the differences between a stage and the most similar finished stage.

    For example ``"rl.lr: 0.003 → 0.001; code: trainers.loss changed"``, where the arrow leads from
    the finished stage to the requested one, or ``"no finished stage like this"``.
    """
    nearest: Manifest | None = None
    fewest = 0
    for manifest in store.iterate():
        if manifest.stage != stage or manifest.iteration != iteration:
            continue
        count = (
            _count(manifest.parameters, parameters)
            + _count(manifest.inputs, inputs)
            + _count(manifest.fingerprint.modules, fingerprint.modules)
        )
        newer = nearest is None or manifest.created > nearest.created
        if nearest is None or count < fewest or (count == fewest and newer):
            nearest, fewest = manifest, count
    if nearest is None:
        return "no finished stage like this"
    lines = [f"{p}: {old} → {new}" for p, old, new in _changed(nearest.parameters, parameters)]
    for name, old, new in _changed(nearest.inputs, inputs):
        lines.append(f"input {name}: {_short(old)} → {_short(new)}")
    lines += [f"code: {line}" for line in fingerprint.difference(nearest.fingerprint)]
    if not lines:
        return "no difference: it is finished by now"
    more = len(lines) - _MAX_DIFFERENCES
    return "; ".join(lines[:_MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _count(old: object, new: object) -> int:
    """Count the leaves that differ, without traversing equal parts."""
    if old == new:
        return 0
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = old.keys() | new.keys()
        return sum(_count(old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in names)
    return 1


def _flat(value: object, path: str = "") -> dict[str, object]:
    """Return the leaves of nested data by dotted path; empty mappings and lists are leaves."""
    pairs: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        pairs = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(str(index), item) for index, item in enumerate(value)]
    if not pairs:
        return {path: [] if isinstance(value, tuple) else value}
    leaves: dict[str, object] = {}
    for name, item in pairs:
        leaves |= _flat(item, f"{path}.{name}" if path else name)
    return leaves


def _changed(before: object, after: object) -> list[tuple[str, object, object]]:
    """List the paths whose values differ, also in type, with both values."""
    result = []
    olds, news = _flat(before), _flat(after)
    for path in sorted(olds.keys() | news.keys()):
        old, new = olds.get(path, _ABSENT), news.get(path, _ABSENT)
        if type(old) is not type(new) or old != new:
            old, new = ("(absent)" if value is _ABSENT else value for value in (old, new))
            result.append((path or "all", old, new))
    return result


def _short(value: object) -> object:
    """Return the first digits of a key; other values unchanged."""
    return value[:8] if isinstance(value, str) and len(value) == 64 else value
