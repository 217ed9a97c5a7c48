"""The service's database: models, files, jobs, events and checkpoints, in one SQLite file.

One process uses it (ensured by a lock on the service's folder), from several threads.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ratchet.errors import StateError

VERSION = 5
_TABLES = """
CREATE TABLE models (
    id TEXT PRIMARY KEY, folder TEXT NOT NULL, created INTEGER NOT NULL,
    root TEXT NOT NULL, job_id TEXT
) STRICT;
CREATE TABLE files (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL, sha256 TEXT NOT NULL, kind TEXT, examples INTEGER NOT NULL
) STRICT;
CREATE TABLE jobs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL, finished_at INTEGER,
    model TEXT NOT NULL, method TEXT NOT NULL, hyperparameters TEXT NOT NULL,
    seed INTEGER NOT NULL, suffix TEXT, metadata TEXT,
    training_file TEXT NOT NULL, validation_file TEXT,
    identity TEXT NOT NULL, idempotency_key TEXT UNIQUE,
    status TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, fine_tuned_model TEXT,
    trained_tokens INTEGER, error TEXT, result_file TEXT
) STRICT;
CREATE INDEX jobs_by_status ON jobs (status, sequence);
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, job_id TEXT NOT NULL,
    created_at INTEGER NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL,
    type TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job_id, sequence);
CREATE TABLE checkpoints (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, job_id TEXT NOT NULL,
    created_at INTEGER NOT NULL, model_id TEXT NOT NULL, step INTEGER NOT NULL,
    train_loss REAL NOT NULL
) STRICT;
CREATE TABLE deleted (
    kind TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT;
CREATE TABLE training_sessions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL, model TEXT NOT NULL, weights TEXT NOT NULL,
    lora_rank INTEGER NOT NULL, lora_alpha INTEGER, seed INTEGER NOT NULL, intent TEXT UNIQUE,
    begins TEXT, snapshot INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0,
    used_at INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE training_verbs (
    session TEXT NOT NULL, sequence INTEGER NOT NULL, verb TEXT NOT NULL, digest TEXT NOT NULL,
    request TEXT, answer TEXT, PRIMARY KEY (session, sequence)
) STRICT;
"""
_SINCE_VERSION_4 = """
CREATE TABLE saved_weights (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, model TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER,
    is_public INTEGER NOT NULL DEFAULT 0, metadata TEXT, UNIQUE (run, kind, name)
) STRICT;
ALTER TABLE training_sessions ADD COLUMN metadata TEXT;
ALTER TABLE training_sessions ADD COLUMN new_optimizer INTEGER NOT NULL DEFAULT 0;
"""
_MIGRATIONS = {0: _TABLES + _SINCE_VERSION_4, 4: _SINCE_VERSION_4}
"""Version → statements; version 0 is an empty file, 4 that of Ratchet 0.1.0."""

Value = str | int | float | None


class Database:
    """The connection, shared by threads under a lock; its file is created if missing.

    Files of earlier versions are migrated.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version in _MIGRATIONS:
            with self.transaction() as connection:
                for statement in _MIGRATIONS[version].split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            self._connection.close()
            raise StateError(
                f"{path} has version {version}, this Ratchet reads {VERSION}. Move the folder"
                f" {path.parent} away and start the service again."
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Execute statements in one transaction; errors roll it back."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[sqlite3.Row]:
        """Read all rows of a query."""
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[Value] = ()) -> sqlite3.Row | None:
        """Read the first row of a query, or None."""
        with self._lock:
            row: sqlite3.Row | None = self._connection.execute(statement, values).fetchone()
            return row

    def page(
        self,
        table: str,
        where: Sequence[str],
        values: Sequence[Value],
        limit: int,
        *,
        ascending: bool = False,
    ) -> tuple[list[sqlite3.Row], bool]:
        """Read the first rows that meet all conditions, and whether there are more."""
        condition, order = " AND ".join(where) or "1", "ASC" if ascending else "DESC"
        statement = f"SELECT * FROM {table} WHERE {condition} ORDER BY sequence {order} LIMIT ?"
        rows = self.rows(statement, [*values, limit + 1])
        return rows[:limit], len(rows) > limit

    def deletion(self, kind: str, name: str) -> str:
        """Return when and why a model or file was deleted, as a sentence; otherwise empty."""
        row = self.row("SELECT * FROM deleted WHERE kind = ? AND id = ?", (kind, name))
        if row is None:
            return ""
        day = time.strftime("%Y-%m-%d", time.gmtime(row["at"]))
        return f" It was deleted on {day}: {row['reason']}."

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


UNFINISHED = "status IN ('queued', 'running', 'paused')"
"""Condition on jobs: their inputs may still be required."""


def record_deleted(connection: sqlite3.Connection, kind: str, name: str, reason: str) -> None:
    """Record the deletion of a model or file, for later requests."""
    connection.execute(
        "INSERT OR REPLACE INTO deleted VALUES (?, ?, ?, ?)", (kind, name, int(time.time()), reason)
    )
