"""Which models there are: the base model and those that jobs have trained."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ratchet.language_models.service.api.errors import ApiError, not_found
from ratchet.language_models.service.api.schemas.objects import ModelList, ModelObject
from ratchet.language_models.service.database import Database


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model: its id, where it lies, and the base model it comes from."""

    id: str
    folder: Path
    root: str

    @property
    def is_fine_tuned(self) -> bool:
        """Whether a job has made it."""
        return self.id != self.root


class ModelRegistry:
    """All models of a service; asked at every completion, so it answers from memory.

    What has no row in the database is removed from the folder of weights.
    """

    def __init__(self, database: Database, folder: Path, base: StoredModel) -> None:
        self._database = database
        self.folder = folder
        self.base = base
        self._known: dict[str, StoredModel] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        with database.transaction() as connection:
            connection.execute(
                "INSERT INTO models VALUES (?, ?, ?, ?, NULL)"
                " ON CONFLICT (id) DO UPDATE SET folder = excluded.folder",
                (base.id, str(base.folder), int(time.time()), base.id),
            )
            rows = connection.execute("SELECT folder FROM models").fetchall()
        kept = {row["folder"] for row in rows}
        for path in folder.iterdir():
            if path.name not in kept:  # a job was killed while it put its model into place
                shutil.rmtree(path, ignore_errors=True)

    def get(self, model_id: str, *, param: str = "model") -> StoredModel:
        """Find a model; raises a 404 if there is none of that id."""
        with contextlib.suppress(KeyError):
            return self._known[model_id]
        with self._lock:  # a deletion must not come between reading and remembering
            row = self._database.row("SELECT * FROM models WHERE id = ?", (model_id,))
            if row is None or not self._is_served(row):
                raise not_found("model", model_id, param=param)
            folder = self.folder / row["folder"]  # relative if it is ours, so that it can be moved
            model = StoredModel(id=row["id"], folder=folder, root=row["root"])
            self._known[model_id] = model
        return model

    def describe(self, model_id: str) -> ModelObject:
        """Return a model as the API shows it."""
        self.get(model_id)
        row = self._database.row("SELECT * FROM models WHERE id = ?", (model_id,))
        if row is None:
            raise not_found("model", model_id)
        return _to_object(row)

    def list(self) -> ModelList:
        """List the models, oldest first."""
        rows = self._database.rows("SELECT * FROM models ORDER BY created, rowid")
        return ModelList(data=[_to_object(row) for row in rows if self._is_served(row)])

    def delete(self, model_id: str) -> None:
        """Remove a fine-tuned model and its weights.

        Raises
        ------
        ApiError
            404 if there is none, 403 for the base model, 409 while a job starts from it.
        """
        model = self.get(model_id)
        if not model.is_fine_tuned:
            raise ApiError(
                403,
                f"{model_id!r} is a base model; only fine-tuned ones can be deleted.",
                code="base_model",
                param="model",
            )
        with self._database.transaction() as connection:
            job = connection.execute(
                "SELECT id FROM jobs WHERE status IN ('queued', 'running', 'paused') AND model = ?",
                (model_id,),
            ).fetchone()
            if job is not None:
                message = f"The job {job['id']} starts from {model_id!r}; cancel that job first."
                raise ApiError(409, message, code="model_in_use", param="model")
            connection.execute("DELETE FROM models WHERE id = ?", (model_id,))
        with self._lock:
            self._known.pop(model_id, None)
        if model.folder.is_relative_to(self.folder):
            shutil.rmtree(model.folder, ignore_errors=True)

    def _is_served(self, row: sqlite3.Row) -> bool:
        """Leave out base models of earlier starts: their folders are not ours to keep."""
        return bool(row["job_id"] is not None or row["id"] == self.base.id)


def _to_object(row: sqlite3.Row) -> ModelObject:
    owner = "ratchet" if row["job_id"] is None else "user"
    return ModelObject(id=row["id"], created=row["created"], owned_by=owner)
