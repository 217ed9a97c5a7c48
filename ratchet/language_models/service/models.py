"""Which models there are: base models and those that jobs have trained."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.language_models.service.api.errors import ApiError, not_found
from ratchet.language_models.service.api.schemas.objects import ModelList, ModelObject
from ratchet.language_models.service.database import UNFINISHED, Database, record_deleted
from ratchet.language_models.service.engine.adapters import AdapterBase, weights_print
from ratchet.store.local import sync_folder, sync_tree

logger = logging.getLogger(__name__)
_HOUR = 3600.0
BROUGHT = "upload"
"""What stands in the place of a job's id for a model that a client has brought."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model: its id, where it lies, and the base model it comes from.

    Parameters
    ----------
    below
        Where its folder holds an adapter: the folders of what it stands on, the whole model first.
    """

    id: str
    folder: Path
    root: str
    below: tuple[Path, ...] = ()

    @property
    def is_fine_tuned(self) -> bool:
        """Whether a job has made it."""
        return self.id != self.root

    @property
    def whole_folder(self) -> Path:
        """The whole model that it is, or that it is an adapter to."""
        return self.below[0] if self.below else self.folder

    @property
    def adapters(self) -> tuple[Path, ...]:
        """What is merged into the whole model, the lowest first."""
        return (*self.below[1:], self.folder) if self.below else ()

    @property
    def is_there(self) -> bool:
        """Whether nothing of it has been deleted."""
        return all(folder.is_dir() for folder in (self.folder, *self.below))


class ModelRegistry:
    """All models of a service; asked at every completion, so it answers from memory.

    What has no row in the database is removed from the folder of weights.

    Parameters
    ----------
    base
        The base model that is there from the start.
    further
        Base models that are made when they are first asked for, by name.
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
        kept = {row["folder"] for row in database.rows("SELECT folder FROM models")}
        for path in folder.iterdir():
            if path.name not in kept:  # a job was killed while it put its model into place
                shutil.rmtree(path, ignore_errors=True)

    def get(self, model_id: str, *, param: str = "model") -> StoredModel:
        """Find a model, or make it; raises a 404 if there is none of that id."""
        with contextlib.suppress(KeyError):
            return self._touched(self._known[model_id])
        if self.is_to_be_made(model_id):
            self._put_base(model_id, self._further[model_id]())
        with self._lock:  # a deletion must not come between reading and remembering
            row = self._row(model_id, param=param)
            model = _stored(self._database, self.folder, row)
            self._known[model_id] = model
        return self._touched(model)

    def is_to_be_made(self, model_id: str) -> bool:
        """Return whether it is a base model that nobody has asked for yet: making it takes long."""
        return model_id in self._further and model_id not in self._bases

    def base_of(self, model_id: str) -> StoredModel:
        """Return the base model that one comes from; of what a client has brought, the first."""
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
        """Take a folder that a client has brought as a model, unless there is one of that id."""
        with self._lock:
            if self._database.row("SELECT id FROM models WHERE id = ?", (model_id,)) is not None:
                return
            self.put(source, model_id)
            with self._database.transaction() as connection:
                connection.execute(
                    "INSERT INTO models VALUES (?, ?, ?, ?, ?)",
                    (model_id, model_id, int(time.time()), model_id, BROUGHT),
                )

    def put(self, source: Path, place: str) -> None:
        """Put a model's folder among those of others, on the disk before a row names it."""
        shutil.rmtree(self.folder / place, ignore_errors=True)  # of whom a kill cut off
        sync_tree(source)
        source.rename(self.folder / place)
        sync_folder(self.folder)

    def last_used(self, model_id: str) -> float:
        """Return when a model was last asked for, within an hour, or made; 0 if it is gone."""
        row = self._database.row("SELECT * FROM models WHERE id = ?", (model_id,))
        try:
            return 0.0 if row is None else self._folder_of(row).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _touched(self, model: StoredModel) -> StoredModel:
        """Note at its folder that a model is used."""
        now = time.monotonic()
        if model.id not in self._bases and now - self._used.get(model.id, -_HOUR) >= _HOUR:
            self._used[model.id] = now
            with contextlib.suppress(OSError):  # it may be deleted right now
                os.utime(model.folder)
        return model

    def describe(self, model_id: str) -> ModelObject:
        """Return a model as the API shows it."""
        return self._to_object(self._row(model_id, param="model"))

    def list(self) -> ModelList:
        """List the models, oldest first."""
        rows = self._database.rows("SELECT * FROM models ORDER BY created, rowid")
        return ModelList(data=[self._to_object(row) for row in rows if self._is_served(row)])

    def delete(self, model_id: str, *, reason: str = "a client asked for it") -> None:
        """Remove a fine-tuned model and its weights.

        Raises
        ------
        ApiError
            404 if there is none, 403 for the base model, 409 while a job starts from it.
        """
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
        found: Sequence[str] = ()
        for row in self._database.rows("SELECT * FROM models WHERE job_id IS NOT NULL"):
            base = AdapterBase.read(self._folder_of(row))
            if base is not None and base.name == model_id:
                found = (*found, row["id"])
        return found

    def _is_served(self, row: sqlite3.Row) -> bool:
        """Leave out base models of earlier starts: their folders are not ours to keep."""
        return bool(row["job_id"] is not None or row["id"] in self._bases)

    def _to_object(self, row: sqlite3.Row) -> ModelObject:
        owner = "ratchet" if row["job_id"] is None else "user"
        root = str(_folder_of(self.folder, row).resolve())
        return ModelObject(id=row["id"], created=row["created"], owned_by=owner, root=root)


def find_stored_model(database: Database, folder: Path, model_id: str) -> StoredModel:
    """Find a model in a service's database, with its folder of models; a 404 if there is none."""
    row = database.row("SELECT * FROM models WHERE id = ?", (model_id,))
    if row is None:
        raise _no_model(database, model_id, "model")
    return _stored(database, folder, row)


def _no_model(database: Database, model_id: str, param: str) -> ApiError:
    more = database.deletion("model", model_id)
    return not_found("model", model_id, param=param, more=more)


def _stored(database: Database, folder: Path, row: sqlite3.Row) -> StoredModel:
    own = _folder_of(folder, row)
    return StoredModel(row["id"], own, row["root"], _below(database, folder, row["id"], own))


def _folder_of(folder: Path, row: sqlite3.Row) -> Path:
    """Return where a model lies: relative if it is ours, so that the home can be moved."""
    return folder / str(row["folder"])


def _below(database: Database, folder: Path, model_id: str, own: Path) -> tuple[Path, ...]:
    """Return the folders that the adapter in a model's own stands on, the whole model first.

    Raises
    ------
    ApiError
        409 if one of them is not there any more, or has other weights by now.
    """
    base = AdapterBase.read(own)
    if base is None:
        return ()
    row = database.row("SELECT * FROM models WHERE id = ?", (base.name,))
    known = [] if row is None else [_folder_of(folder, row)]
    places = (*known, Path(base.folder))  # by its name; or where an earlier version lay
    for place in places:
        if place.is_dir() and weights_print(place) == base.weights:
            return (*_below(database, folder, base.name, place), place)
    where = ", ".join(map(str, places))
    logger.error("%s needs the weights of %s; they are not in %s", model_id, base.name, where)
    raise ApiError(
        409,
        f"{model_id!r} is an adapter to {base.name!r}, whose weights are not what they were when it"
        " was trained, or gone. Put them back (the service's log says where), or train it again.",
        code="base_model_changed",
        param="model",
    )
