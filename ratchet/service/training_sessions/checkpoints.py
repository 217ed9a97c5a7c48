"""Paths of saved weights, ``run/kind/name``, and when they expire."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass

from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.database import Database
from ratchet.service.training_sessions.operations import CheckpointBody

SCHEME = "tinker://"
_KIND = "checkpoint"
_CURRENT = "(expires_at IS NULL OR expires_at > ?)"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Saved weights of a run; times in seconds since 1970."""

    run: str
    kind: str
    name: str
    model: str
    created_at: int
    expires_at: int | None
    is_public: bool
    metadata: dict[str, str] | None

    @property
    def path(self) -> str:
        """The path, which identifies it."""
        return f"{self.run}/{self.kind}/{self.name}"


class Checkpoints:
    """All paths of a service. Expired weights are unavailable immediately, and deleted later."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, path: str) -> Checkpoint | None:
        """Find saved weights by their path; None for other names of models."""
        row = self._row(path)
        if row is None:
            if more := self._database.deletion(_KIND, path):
                raise not_found(_KIND, path, param="path", more=more)
            return None
        if row["expires_at"] is not None and row["expires_at"] <= time.time():
            expired = time.strftime("%Y-%m-%d %H:%M", time.gmtime(row["expires_at"]))
            more = f" It expired at {expired} UTC. Save weights to keep without ttl_seconds."
            raise not_found(_KIND, path, param="path", more=more)
        return _to_checkpoint(row)

    def model_of(self, name: str) -> str:
        """Return the model that a path names, with or without its scheme, or any other name."""
        path = name.removeprefix(SCHEME)
        checkpoint = self.find(path) if path.count("/") == 2 else None
        return path if checkpoint is None else checkpoint.model

    def get(self, path: str) -> Checkpoint:
        """Find saved weights by their path; as :meth:`find`, but raises a 404 if unknown."""
        checkpoint = self.find(path)
        if checkpoint is None:
            raise not_found(_KIND, path, param="path")
        return checkpoint

    def of_model(self, model: str) -> Checkpoint | None:
        """Return the path of a model."""
        row = self._database.row("SELECT * FROM saved_weights WHERE model = ?", (model,))
        return None if row is None else _to_checkpoint(row)

    def page(
        self, run: str | None = None, *, limit: int = -1, offset: int = 0
    ) -> tuple[list[Checkpoint], int]:
        """List the saved weights of a run, or of all runs, newest first; and count them."""
        where = f"{_CURRENT} AND (run = ? OR ? IS NULL)"
        values = (time.time(), run, run)
        rows = self._database.rows(
            f"SELECT * FROM saved_weights WHERE {where} ORDER BY sequence DESC LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        count = self._database.row(f"SELECT COUNT(*) FROM saved_weights WHERE {where}", values)
        assert count is not None
        return [_to_checkpoint(row) for row in rows], int(count[0])

    def set_ttl(self, path: str, ttl_seconds: int | None) -> None:
        """Let saved weights expire in a number of seconds; None for never."""
        self._update(path, "expires_at", _expiry(ttl_seconds))

    def publish(self, path: str, *, is_public: bool) -> None:
        """Mark saved weights as public or not; all clients of a service can read them anyway."""
        self._update(path, "is_public", int(is_public))

    def _update(self, path: str, column: str, value: int | None) -> None:
        checkpoint = self.get(path)
        with self._database.transaction() as connection:
            connection.execute(
                f"UPDATE saved_weights SET {column} = ? WHERE run = ? AND kind = ? AND name = ?",
                (value, checkpoint.run, checkpoint.kind, checkpoint.name),
            )

    def check_new(self, body: CheckpointBody, name: str, model: str) -> str:
        """Return the path; refuse one that names other weights, unless they may be replaced."""
        path = f"{body.run}/{body.kind}/{name}"
        row = self._row(path)
        if row is not None and row["model"] != model and not body.overwrite:
            raise ApiError(
                400,
                f"The checkpoint {path!r} exists. Choose another name, or pass overwrite=True to"
                " replace it.",
                code="checkpoint_exists",
                param="path",
            )
        return path

    def expired(self, now: float) -> list[str]:
        """Return the models whose paths expired before a time (seconds since 1970)."""
        rows = self._database.rows(f"SELECT model FROM saved_weights WHERE NOT {_CURRENT}", (now,))
        return [row["model"] for row in rows]

    def _row(self, path: str) -> sqlite3.Row | None:
        run, kind, name = path.split("/") if path.count("/") == 2 else ("", "", "")
        return self._database.row(
            "SELECT * FROM saved_weights WHERE run = ? AND kind = ? AND name = ?", (run, kind, name)
        )


def record_checkpoint(
    connection: sqlite3.Connection, body: CheckpointBody, name: str, model: str
) -> None:
    """Record a path of saved weights, in a transaction; weights that it replaces expire."""
    connection.execute(
        "UPDATE saved_weights SET name = name || '#' || sequence, expires_at = ?"
        " WHERE run = ? AND kind = ? AND name = ?",
        (int(time.time()), body.run, body.kind, name),
    )
    connection.execute(
        "INSERT INTO saved_weights (run, kind, name, model, created_at, expires_at, metadata)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(body.run, body.kind, name, model, int(time.time()), _expiry(body.ttl_seconds)),
            None if body.metadata is None else json.dumps(body.metadata),
        ),
    )


def _expiry(ttl_seconds: int | None) -> int | None:
    return None if ttl_seconds is None else int(time.time()) + ttl_seconds


def _to_checkpoint(row: sqlite3.Row) -> Checkpoint:
    names = ("run", "kind", "name", "model", "created_at", "expires_at")
    return Checkpoint(
        **{name: row[name] for name in names},
        is_public=bool(row["is_public"]),
        metadata=None if row["metadata"] is None else json.loads(row["metadata"]),
    )
