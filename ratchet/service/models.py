"""Registry of models: base models, and models from jobs and clients."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.language_models.local.adapters import (
    AdapterBase,
    leave_weights_unchanged,
    weights_print,
)
from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.api.schemas.objects import ModelList, ModelObject
from ratchet.service.database import UNFINISHED, Database, record_deleted
from ratchet.store.local import sync_folder, sync_tree

logger = logging.getLogger(__name__)
_HOUR = 3600.0
_COMPOSED = "composed"
BROUGHT = "upload"
"""Replaces the job's id for a model that a client uploaded."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model: its id, folder and base model.

    Parameters
    ----------
    below
        For an adapter: the folders of the models below it, the complete model first.
    """

    id: str
    folder: Path
    root: str
    below: tuple[Path, ...] = ()

    @property
    def complete_folder(self) -> Path:
        """The complete model, which it is or adapts."""
        return self.below[0] if self.below else self.folder

    @property
    def adapters(self) -> tuple[Path, ...]:
        """Adapters to merge into the complete model, the lowest first."""
        return (*self.below[1:], self.folder) if self.below else ()

    @property
    def weight_bytes(self) -> int:
        """Size of the complete model's weights."""
        return _weight_bytes(self.complete_folder)

    def bytes_to_load(self, loaded: Iterable[StoredModel]) -> int:
        """Return the size of the weights that are not in memory with the loaded models."""
        if any(self._shares_weights(model) for model in loaded):
            return sum(map(_weight_bytes, self.adapters))
        return self.weight_bytes

    def _shares_weights(self, other: StoredModel) -> bool:
        folder = self.complete_folder
        return folder == other.complete_folder and all(
            leave_weights_unchanged(folder, model.adapters) for model in (self, other)
        )

    @property
    def exists(self) -> bool:
        """Whether all its folders exist."""
        return all(folder.is_dir() for folder in (self.folder, *self.below))


class ModelRegistry:
    """All models of a service; cached in memory, since every completion reads it.

    Folders without a row in the database are deleted.

    Parameters
    ----------
    base
        The base model available from the start.
    further
        Base models that are created on first request, by name.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        base: StoredModel,
        further: Mapping[str, Callable[[], Path]] | None = None,
    ) -> None:
        self._database = database
        self.folder = folder
        self.base = base
        self._further = dict(further or {})
        self._bases = {base.id}
        self._known: dict[str, StoredModel] = {}
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._put_base(base.id, base.folder)
        registered_folders = {row["folder"] for row in database.rows("SELECT folder FROM models")}
        for path in folder.iterdir():
            if path.name not in registered_folders:  # a killed job's unfinished model
                shutil.rmtree(path, ignore_errors=True)

    def get(self, model_id: str, *, param: str = "model") -> StoredModel:
        """Find or create a model; raises a 404 if its id does not exist."""
        with contextlib.suppress(KeyError):
            return self._touched(self._known[model_id])
        if self.must_be_created(model_id):
            self._put_base(model_id, self._further[model_id]())
        with self._lock:  # a deletion must not occur between reading and caching
            row = self._row(model_id, param=param)
            model = _stored(self._database, self.folder, row)
            self._known[model_id] = model
        return self._touched(model)

    def must_be_created(self, model_id: str) -> bool:
        """Return whether it is a base model not created yet: creation is slow."""
        return model_id in self._further and model_id not in self._bases

    def base_of(self, model_id: str) -> StoredModel:
        """Return a model's base model; for uploads, the first."""
        root = self.get(model_id).root
        return self.get(root) if root in self._bases | self._further.keys() else self.base

    def _put_base(self, model_id: str, folder: Path) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO models VALUES (?, ?, ?, ?, NULL)"
                " ON CONFLICT (id) DO UPDATE SET folder = excluded.folder",
                (model_id, str(folder), int(time.time()), model_id),
            )
        self._bases.add(model_id)

    def add(self, model_id: str, source: Path) -> None:
        """Register a client's folder as a model, unless its id exists."""
        with self._lock:
            if self._database.row("SELECT id FROM models WHERE id = ?", (model_id,)) is not None:
                return
            self.put(source, model_id)
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO models VALUES (?, ?, ?, ?, ?)",
                    (model_id, model_id, int(time.time()), model_id, BROUGHT),
                )

    def put(self, source: Path, path: str) -> None:
        """Move a model's folder to its location, durably before a row refers to it."""
        shutil.rmtree(self.folder / path, ignore_errors=True)  # of an interrupted attempt
        sync_tree(source)
        source.rename(self.folder / path)
        sync_folder(self.folder)

    def root_of(self, model_id: str) -> str:
        """Return the base model of a model, also of one that was deleted or isn't served."""
        row = self._database.row("SELECT root FROM models WHERE id = ?", (model_id,))
        return model_id if row is None else str(row["root"])

    def size_of(self, model_id: str) -> int | None:
        """Return the bytes of a model's own files; None if it was deleted."""
        row = self._database.row("SELECT * FROM models WHERE id = ?", (model_id,))
        try:
            files = () if row is None else tuple(self._folder_of(row).iterdir())
            return sum(file.stat().st_size for file in files) or None
        except FileNotFoundError:
            return None

    def last_used(self, model_id: str) -> float:
        """Return when a model was last requested, within an hour, or created; 0 if deleted."""
        row = self._database.row("SELECT * FROM models WHERE id = ?", (model_id,))
        try:
            return 0.0 if row is None else self._folder_of(row).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _touched(self, model: StoredModel) -> StoredModel:
        """Record the use of a model at its folder."""
        now = time.monotonic()
        if model.id not in self._bases and now - self._used.get(model.id, -_HOUR) >= _HOUR:
            self._used[model.id] = now
            with contextlib.suppress(OSError):  # it may be deleted right now
                os.utime(model.folder)
        return model

    def describe(self, model_id: str) -> ModelObject:
        """Return a model in the API's format.

        The root of a chain of adapters is one adapter with the same effect: vLLM accepts one.
        """
        row = self._row(model_id, param="model")
        described = self._to_object(row)
        if row["job_id"] is None or len(adapters := self.get(model_id).adapters) < 2:
            return described
        from ratchet.models.low_rank import compose  # torch takes seconds

        composed = adapters[-1] / _COMPOSED
        with self._lock:
            if not composed.is_dir():
                part = composed.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                compose(adapters, part)
                part.rename(composed)
        return described.model_copy(update={"root": str(composed.resolve())})

    def list(self) -> ModelList:
        """List the models, oldest first."""
        rows = self._database.rows("SELECT * FROM models ORDER BY created, rowid")
        models = [self._to_object(row) for row in rows if self._is_served(row)]
        return ModelList(object="list", data=models)

    def delete(self, model_id: str, *, reason: str = "a client requested it") -> None:
        """Delete a fine-tuned model and its weights."""
        row = self._row(model_id, param="model")
        if row["job_id"] is None:
            raise ApiError(
                403,
                f"{model_id!r} is a base model; only fine-tuned ones can be deleted.",
                code="base_model",
                param="model",
            )
        with self._database.transaction() as connection:
            job = connection.execute(
                f"SELECT id FROM jobs WHERE {UNFINISHED} AND model = ?",
                (model_id,),
            ).fetchone()
            if job is not None:
                message = f"The job {job['id']} starts from {model_id!r}; cancel that job first."
                raise ApiError(409, message, code="model_in_use", param="model")
            session = connection.execute(
                "SELECT id FROM training_sessions WHERE model = ? OR begins = ?",
                (model_id, model_id),
            ).fetchone()
            if session is not None:
                message = f"The training session {session['id']} starts from {model_id!r}; delete"
                message += " that session first."
                raise ApiError(409, message, code="model_in_use", param="model")
            if adapters := self._adapters_to(model_id):
                message = f"{adapters[0]!r} is an adapter to {model_id!r}; delete that model first."
                raise ApiError(409, message, code="model_in_use", param="model")
            connection.execute("DELETE FROM models WHERE id = ?", (model_id,))
            record_deleted(connection, "model", model_id, reason)
            paths = connection.execute(
                "DELETE FROM saved_weights WHERE model = ? RETURNING run, kind, name", (model_id,)
            ).fetchall()
            for path in paths:
                record_deleted(connection, "checkpoint", "/".join(path), reason)
        with self._lock:
            self._known.pop(model_id, None)
            self._used.pop(model_id, None)
        shutil.rmtree(self._folder_of(row), ignore_errors=True)

    def _row(self, model_id: str, *, param: str) -> sqlite3.Row:
        row = self._database.row("SELECT * FROM models WHERE id = ?", (model_id,))
        if row is None or not self._is_served(row):
            raise _no_model(self._database, model_id, param)
        return row

    def _folder_of(self, row: sqlite3.Row) -> Path:
        return _folder_of(self.folder, row)

    def _adapters_to(self, model_id: str) -> Sequence[str]:
        """Return the models that are adapters to one."""
        adapters: Sequence[str] = ()
        for row in self._database.rows("SELECT * FROM models WHERE job_id IS NOT NULL"):
            base = AdapterBase.read(self._folder_of(row))
            if base is not None and base.name == model_id:
                adapters = (*adapters, row["id"])
        return adapters

    def _is_served(self, row: sqlite3.Row) -> bool:
        """Exclude base models of earlier starts: their folders are not managed here."""
        return bool(row["job_id"] is not None or row["id"] in self._bases)

    def _to_object(self, row: sqlite3.Row) -> ModelObject:
        owner = "ratchet" if row["job_id"] is None else "user"
        root = str(_folder_of(self.folder, row).resolve())
        return ModelObject(
            object="model", id=row["id"], created=row["created"], owned_by=owner, root=root
        )


def find_stored_model(database: Database, folder: Path, model_id: str) -> StoredModel:
    """Find a model in a service's database, with its models folder; a 404 if missing."""
    row = database.row("SELECT * FROM models WHERE id = ?", (model_id,))
    if row is None:
        raise _no_model(database, model_id, "model")
    return _stored(database, folder, row)


def _no_model(database: Database, model_id: str, param: str) -> ApiError:
    more = database.deletion("model", model_id)
    return not_found("model", model_id, param=param, more=more)


def _stored(database: Database, folder: Path, row: sqlite3.Row) -> StoredModel:
    model_folder = _folder_of(folder, row)
    return StoredModel(
        row["id"], model_folder, row["root"], _below(database, folder, row["id"], model_folder)
    )


def _folder_of(folder: Path, row: sqlite3.Row) -> Path:
    """Return a model's folder: relative if it is in the home, which may move."""
    return folder / str(row["folder"])


def _below(database: Database, folder: Path, model_id: str, model_folder: Path) -> tuple[Path, ...]:
    """Return the folders below an adapter, the complete model first."""
    base = AdapterBase.read(model_folder)
    if base is None:
        return ()
    row = database.row("SELECT * FROM models WHERE id = ?", (base.name,))
    known = [] if row is None else [_folder_of(folder, row)]
    candidates = (*known, Path(base.folder))  # by its name, or the location of an earlier version
    for candidate in candidates:
        if candidate.is_dir() and weights_print(candidate) == base.weights:
            return (*_below(database, folder, base.name, candidate), candidate)
    where = ", ".join(map(str, candidates))
    logger.error("%s needs the weights of %s; they are not in %s", model_id, base.name, where)
    raise ApiError(
        409,
        f"{model_id!r} is an adapter to {base.name!r}, whose weights have changed since it"
        " was trained, or are missing. Restore them (see the service's log), or train it again.",
        code="base_model_changed",
        param="model",
    )


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
