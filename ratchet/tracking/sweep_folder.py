"""``sweep.json``: the members of a sweep. Read with no server.

It is in its own folder among the runs; the status of each member is in its run folder.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.errors import DataError
from ratchet.tracking.files import is_safe_name, write_atomically
from ratchet.tracking.preregistration import PreregistrationRecord
from ratchet.tracking.run_folder import SWEEP_FILE, find_folder

PAGE_FILE = "sweep.html"
STUDY_FILE = "study.jsonl"
"""Journal of Optuna's suggestions and the members' results."""


class SweepMemberRecord(BaseModel):
    """One member: its run's id, and what it changes by dotted path."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    changes: dict[str, Any]


class SweepRecord(BaseModel):
    """Content of ``sweep.json``.

    ``grid`` is a grid's, ``spec`` the specification of any other sweep. ``members`` are those
    created so far. ``preregistered`` was recorded before the first member started.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = 1
    sweep_id: str
    name: str
    created: float = Field(default_factory=time.time)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    spec: dict[str, Any] = Field(default_factory=dict)
    members: list[SweepMemberRecord]
    command: list[str] = Field(default_factory=list)
    preregistered: PreregistrationRecord | None = None


def make_sweep_folder(runs: Path | str, sweep_id: str) -> Path:
    """Create a sweep's folder if it is missing, and return it."""
    if not is_safe_name(sweep_id):
        raise DataError(
            f"sweep {sweep_id!r}: expected a name of letters, digits, '_', '.' and '-'."
        )
    folder = Path(runs) / sweep_id
    if (folder / "manifest.json").exists():
        raise DataError(f"sweep {sweep_id!r}: this is a run's name. Choose another.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_sweep(runs: Path | str, record: SweepRecord) -> Path:
    """Write a sweep's folder and return it.

    A continued sweep keeps its time of creation and its preregistration.
    Errors are those of :func:`make_sweep_folder`.
    """
    file = make_sweep_folder(runs, record.sweep_id) / SWEEP_FILE
    if file.exists():
        known = _read(file)
        preregistered = known.preregistered or record.preregistered
        update = {"created": known.created, "preregistered": preregistered}
        record = record.model_copy(update=update)
    write_atomically(file, json.dumps(record.model_dump(mode="json"), indent=1))
    return file.parent


def read_own_sweep(folder: Path) -> SweepRecord | None:
    """Read the record in a sweep's folder; None if it does not exist."""
    file = folder / SWEEP_FILE
    return _read(file) if file.exists() else None


def read_sweep(runs: Path | str, name: str) -> SweepRecord | None:
    """Read a sweep by its id, a prefix of it, or its folder; None if the name is not a sweep's."""
    folder = find_folder(runs, name)
    return None if folder is None else read_own_sweep(folder)


def _read(file: Path) -> SweepRecord:
    try:
        return SweepRecord.model_validate_json(file.read_bytes())
    except (ValidationError, ValueError) as error:
        raise DataError(
            f"{file}: not a record of a sweep ({error}). Remove it and run the sweep again;"
            " finished stages are found in the store."
        ) from error
