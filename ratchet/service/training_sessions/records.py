"""Sessions and their verbs in the service's database.

A verb is recorded before it is executed, and its response before it is sent: each verb takes effect
once, in spite of lost messages and kills.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from ratchet.language_models.training_service.interface import KEPT_ANSWERS
from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.database import Database, record_deleted
from ratchet.service.training_sessions.operations import (
    CreateSessionRequest,
    SessionObject,
)

_FORGOTTEN = "{}"
_NEVER_RETRY = {"x-should-retry": "false"}
TINKER = "tinker:"
"""Prefix of the intents of tinker's clients: random, and never requested again."""
RUN_SESSION = "run-"
"""Next part of the prefix if a run of Ratchet's has stored the session's models."""
_MINUTE = 60
_MOST_SKIPPED = 4096
_UNUSED = """
SELECT id FROM training_sessions WHERE MAX(created_at, used_at) < ?
AND NOT EXISTS (SELECT 1 FROM models WHERE job_id = training_sessions.id)
AND NOT EXISTS (SELECT 1 FROM training_verbs
                WHERE session = training_sessions.id AND answer IS NULL)
"""
_SAME = ("model", "lora_rank", "lora_alpha", "seed", "begins")


def conflict(message: str, code: str) -> ApiError:
    """Return a 409 that clients should not retry."""
    return ApiError(409, message, code=code, param="sequence", headers=_NEVER_RETRY)


class SessionRecords:
    """Records of all sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, request: CreateSessionRequest, weights: str, begins: str | None = None
    ) -> sqlite3.Row:
        """Record a session, once for each intent.

        ``weights`` identifies those of its model; ``begins`` is the saved model that it resumes.
        """
        columns = {**request.model_dump(), "begins": begins}
        digest = hashlib.sha256((request.intent or secrets.token_hex(16)).encode()).hexdigest()
        with self._database.transaction() as connection:
            row: sqlite3.Row | None = None
            if request.intent is not None:
                row = connection.execute(
                    "SELECT * FROM training_sessions WHERE intent = ?", (request.intent,)
                ).fetchone()
            if row is None:
                connection.execute(
                    "INSERT INTO training_sessions (id, created_at, model, weights, lora_rank,"
                    " lora_alpha, seed, intent, begins, new_optimizer, metadata)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(f"ts-{digest[:24]}", int(time.time()), request.model, weights),
                        *(request.lora_rank, request.lora_alpha, request.seed),
                        *(request.intent, begins, request.new_optimizer),
                        json.dumps(request.metadata),
                    ),
                )
                row = connection.execute(
                    "SELECT * FROM training_sessions ORDER BY sequence DESC LIMIT 1"
                ).fetchone()
        assert row is not None
        self._touch(row)
        if any(row[name] != columns[name] for name in (*_SAME, "new_optimizer")):
            raise conflict(
                f"The intent {request.intent!r} has a session already, with another model, adapter"
                " or seed. Take another intent.",
                "intent_taken",
            )
        return row

    def row(self, session_id: str) -> sqlite3.Row:
        """Find a session, or raise a 404."""
        row = self._database.row("SELECT * FROM training_sessions WHERE id = ?", (session_id,))
        if row is None:
            more = self._database.deletion("training session", session_id)
            raise not_found("training session", session_id, more=more)
        return row

    def used(self, session_id: str) -> sqlite3.Row:
        """Find a session and record its use, or raise a 404."""
        row = self.row(session_id)
        self._touch(row)
        return row

    def _touch(self, row: sqlite3.Row) -> None:
        """Record a session's use, at most once a minute."""
        now = int(time.time())
        if now - _last_used(row) < _MINUTE:
            return
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE training_sessions SET used_at = ? WHERE id = ?", (now, row["id"])
            )

    def of_intent(self, intent: str) -> sqlite3.Row:
        """Find the session of an intent, or raise a 404."""
        row = self._database.row("SELECT * FROM training_sessions WHERE intent = ?", (intent,))
        if row is None:
            raise not_found("training session", intent, param="intent")
        return row

    def saver_of(self, model_id: str) -> sqlite3.Row | None:
        """Return the session that saved a model; None if unknown or deleted."""
        return self._database.row(
            "SELECT training_sessions.* FROM training_sessions JOIN models"
            " ON job_id = training_sessions.id WHERE models.id = ?",
            (model_id,),
        )

    def history(self, session_id: str, sequence: int) -> str:
        """Return the SHA-256 of all inputs of a session's weights after a verb."""
        row = self.row(session_id)
        verbs = self._database.rows(
            "SELECT digest FROM training_verbs WHERE session = ? AND sequence <= ?"
            " ORDER BY sequence",
            (session_id, sequence),
        )
        began = [row[name] for name in ("id", "weights", *_SAME)]
        if row["new_optimizer"]:  # otherwise equal to the ids of earlier versions
            began.append("new_optimizer")
        content = json.dumps([began, [verb["digest"] for verb in verbs]])
        return hashlib.sha256(content.encode()).hexdigest()

    def describe(self, row: sqlite3.Row) -> SessionObject:
        """Return a session as an object of the API."""
        names = ("id", "created_at", "model", "lora_rank", "lora_alpha", "seed", "intent", "steps")
        return SessionObject(
            next_sequence=self.next_sequence(row["id"]),
            used_at=_last_used(row),
            metadata=json.loads(row["metadata"] or "null"),
            **{name: row[name] for name in names},
        )

    def next_sequence(self, session_id: str) -> int:
        """Return the number of the next verb."""
        row = self._database.row(
            "SELECT COALESCE(MAX(sequence) + 1, 0) FROM training_verbs WHERE session = ?",
            (session_id,),
        )
        return 0 if row is None else int(row[0])

    def accept(
        self, session_id: str, verb: str, sequence: int, request: str, *, skips: bool = False
    ) -> None:
        """Record a verb, unless it is recorded already.

        The last one may be replaced if it was refused. With ``skips``, missing numbers before it
        are recorded as refused: its client sends a request after the response to the last one, and
        has used numbers for those refused before they reached the session.
        """
        digest = hashlib.sha256(f"{verb}:{request}".encode()).hexdigest()
        self.used(session_id)
        with self._database.transaction() as connection:
            self.row(session_id)
            known = connection.execute(
                "SELECT * FROM training_verbs WHERE session = ? AND sequence = ?",
                (session_id, sequence),
            ).fetchone()
            expected = self.next_sequence(session_id)
            if known is not None and known["digest"] == digest:
                return
            if known is not None and sequence == expected - 1 and is_refused(known):
                connection.execute(
                    "DELETE FROM training_verbs WHERE session = ? AND sequence = ?",
                    (session_id, sequence),
                )
                known, expected = None, sequence
            if known is None:
                if skips and 0 < sequence - expected <= _MOST_SKIPPED:
                    _skip(connection, session_id, range(expected, sequence))
                elif sequence != expected:
                    raise conflict(
                        f"sequence: got {sequence}, expected {expected}, the session's next.",
                        "sequence_gap",
                    )
                connection.execute(
                    "INSERT INTO training_verbs VALUES (?, ?, ?, ?, ?, NULL)",
                    (session_id, sequence, verb, digest, request),
                )
                return
            raise conflict(
                f"sequence: {sequence} was a {known['verb']} with other content. Continue"
                f" with {expected}, or repeat the same request.",
                "sequence_taken",
            )

    def verb(self, session_id: str, sequence: int) -> sqlite3.Row | None:
        """Return a verb that was accepted."""
        return self._database.row(
            "SELECT * FROM training_verbs WHERE session = ? AND sequence = ?",
            (session_id, sequence),
        )

    def answer(self, session_id: str, sequence: int) -> dict[str, Any] | None:
        """Return the response to a verb; None if it has not been executed."""
        row = self.verb(session_id, sequence)
        if row is None or row["answer"] is None:
            return None
        if row["answer"] == _FORGOTTEN:
            raise conflict(
                f"sequence: {sequence} was done, but only the last {KEPT_ANSWERS} answers of a"
                " session are kept.",
                "answer_forgotten",
            )
        answer: dict[str, Any] = json.loads(row["answer"])
        if "refused" in answer:
            raise ApiError(400, answer["refused"], code="verb_refused")
        return answer

    def done(
        self,
        row: sqlite3.Row,
        answer: dict[str, Any],
        also: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> None:
        """Record the response to a verb, and its effects, in one transaction."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE training_verbs SET answer = ? WHERE session = ? AND sequence = ?",
                (json.dumps(answer, separators=(",", ":")), row["session"], row["sequence"]),
            )
            step = answer.get("metrics", {}).get("step")
            if step is not None:
                connection.execute(
                    "UPDATE training_sessions SET steps = ? WHERE id = ?",
                    (int(step), row["session"]),
                )
            also(connection)

    def snapshot(self, session_id: str, verbs: int) -> None:
        """Record that a file contains the state after the first verbs; they can be deleted."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE training_sessions SET snapshot = ? WHERE id = ?", (verbs, session_id)
            )
            connection.execute(
                "UPDATE training_verbs SET request = NULL WHERE session = ? AND sequence < ?"
                " AND request IS NOT NULL",
                (session_id, verbs),
            )
            connection.execute(
                "UPDATE training_verbs SET answer = ? WHERE session = ? AND sequence < ?"
                " AND answer != ?",
                (_FORGOTTEN, session_id, verbs - KEPT_ANSWERS, _FORGOTTEN),
            )

    def first_waiting(self, session_id: str) -> int | None:
        """Return the number of the first verb that was accepted and not executed."""
        row = self._database.row(
            "SELECT MIN(sequence) FROM training_verbs WHERE session = ? AND answer IS NULL",
            (session_id,),
        )
        return None if row is None or row[0] is None else int(row[0])

    def waiting(self) -> list[tuple[str, int]]:
        """Return the sessions with accepted, unexecuted verbs, and the last of these."""
        rows = self._database.rows(
            "SELECT session, MAX(sequence) AS last FROM training_verbs WHERE answer IS NULL"
            " GROUP BY session ORDER BY session"
        )
        return [(row["session"], row["last"]) for row in rows]

    def all(self) -> list[SessionObject]:
        """List the sessions, oldest first."""
        rows = self._database.rows("SELECT * FROM training_sessions ORDER BY sequence")
        return [self.describe(row) for row in rows]

    def delete(self, session_id: str) -> None:
        """Delete a session."""
        self.row(session_id)
        with self._database.transaction() as connection:
            _delete(connection, session_id)

    def unused(self, before: float) -> list[str]:
        """Return the sessions without use since, without pending verbs and without a model."""
        return [row["id"] for row in self._database.rows(_UNUSED, (before,))]

    def forget_unused(self, before: float, reason: str) -> list[str]:
        """Delete the sessions that :meth:`unused` returns; return them."""
        with self._database.transaction() as connection:
            gone = self.unused(before)
            for session_id in gone:
                _delete(connection, session_id)
                record_deleted(connection, "training session", session_id, reason)
        return gone


def _skip(connection: sqlite3.Connection, session_id: str, sequences: range) -> None:
    request = json.dumps({"message": "The request was refused before it reached the session."})
    digest = hashlib.sha256(f"refused:{request}".encode()).hexdigest()
    connection.executemany(
        "INSERT INTO training_verbs VALUES (?, ?, 'refused', ?, ?, NULL)",
        [(session_id, sequence, digest, request) for sequence in sequences],
    )


def _last_used(row: sqlite3.Row) -> int:
    return int(max(row["created_at"], row["used_at"]))


def _delete(connection: sqlite3.Connection, session_id: str) -> None:
    connection.execute("DELETE FROM training_verbs WHERE session = ?", (session_id,))
    connection.execute("DELETE FROM training_sessions WHERE id = ?", (session_id,))


def is_refused(verb: sqlite3.Row) -> bool:
    """Return whether a verb was refused."""
    return verb["answer"] is not None and "refused" in json.loads(verb["answer"])
