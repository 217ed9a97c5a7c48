"""Fine-tuning jobs: created once, listed, paused, cancelled."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.api.schemas.fine_tuning import (
    CreateJobRequest,
    JobObject,
    JobStatus,
)
from ratchet.service.api.schemas.objects import Page
from ratchet.service.database import UNFINISHED, Database, Value
from ratchet.service.files import FileStore, StoredFile
from ratchet.service.jobs.history import to_job_object
from ratchet.service.models import ModelRegistry
from ratchet.service.settings import Limits
from ratchet.service.training.job_folder import HyperParameterValue, Method

_INSERT = (
    "INSERT INTO jobs (id, created_at, model, method, hyperparameters, seed, suffix, metadata,"
    " training_file, validation_file, identity, idempotency_key, status)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued')"
)

_NOT_CHANGEABLE: Mapping[JobStatus, str] = {
    "cancelled": "job_not_cancellable",
    "paused": "job_not_pausable",
    "queued": "job_not_resumable",
}


@dataclass(frozen=True, slots=True)
class JobContent:
    """All inputs of a job's weights."""

    model: str
    method: Method
    hyperparameters: Mapping[str, HyperParameterValue]
    suffix: str | None
    training_sha256: str
    validation_sha256: str | None
    seed: int | None

    def identity(self) -> str:
        """Return the SHA-256 of the content's canonical JSON."""
        content = {
            "model": self.model,
            "method": self.method,
            "hyperparameters": dict(self.hyperparameters),
            "suffix": self.suffix,
            "training": self.training_sha256,
            "validation": self.validation_sha256,
            "seed": self.seed,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class JobStore:
    """All jobs of a service."""

    def __init__(
        self,
        database: Database,
        files: FileStore,
        models: ModelRegistry,
        limits: Limits,
    ) -> None:
        self._database = database
        self._files = files
        self._models = models
        self._limits = limits

    def create(self, request: CreateJobRequest, header_key: str | None) -> JobObject:
        """Record a job, or find the one with the same idempotency key."""
        key = _idempotency_key(request, header_key)
        if self._models.must_be_created(request.model):  # which takes long
            self._models.get(request.model)
        with self._database.transaction() as connection:
            job_row = None
            if key is not None:
                statement = "SELECT * FROM jobs WHERE idempotency_key = ?"
                job_row = connection.execute(statement, (key,)).fetchone()
            if job_row is not None:
                self._require_same(job_row, request)
                return to_job_object(job_row)
            identity = self._content(request).identity()
            self._require_room(connection)
            job_id = f"ftjob-{secrets.token_hex(12)}"
            method = request.resolved_method
            seed = request.seed if request.seed is not None else int(identity[:7], 16)
            metadata = None if request.metadata is None else json.dumps(request.metadata)
            values = (
                *(job_id, int(time.time()), request.model, method.type),
                *(json.dumps(method.hyperparameters), seed, request.suffix, metadata),
                *(request.training_file, request.validation_file, identity, key),
            )
            connection.execute(_INSERT, values)
            add_event(connection, job_id, "Created the job; it is queued.")
            return self.get(job_id)  # as created: later it may already be running

    def get(self, job_id: str) -> JobObject:
        """Return a job; raises a 404 if its id does not exist."""
        return to_job_object(self.row(job_id))

    def row(self, job_id: str, *, param: str = "fine_tuning_job_id") -> sqlite3.Row:
        """Return a job's row."""
        row = self._database.row("SELECT * FROM jobs WHERE id = ?", (job_id,))
        if row is None:
            raise not_found("fine-tuning job", job_id, param=param)
        return row

    def page(
        self,
        *,
        after: str | None,
        limit: int,
        metadata: Mapping[str, str] | None,
        no_metadata: bool,
    ) -> Page[JobObject]:
        """List jobs, newest first: those with these metadata, or without any."""
        where, values = list[str](), list[Value]()
        if after is not None:
            where.append("sequence < ?")
            values.append(self.row(after, param="after")["sequence"])
        if no_metadata:
            where.append("metadata IS NULL")
        for name, value in (metadata or {}).items():
            where.append(
                "EXISTS (SELECT 1 FROM json_each(jobs.metadata) AS pair"
                " WHERE pair.key = ? AND pair.value = ?)"
            )
            values += [name, value]
        rows, has_more = self._database.page("jobs", where, values, limit)
        return Page(object="list", data=[to_job_object(row) for row in rows], has_more=has_more)

    def cancel(self, job_id: str) -> JobObject:
        """Mark a job as cancelled; raises a 400 if it has ended."""
        of: tuple[JobStatus, ...] = ("queued", "running", "paused")
        return self._change(job_id, "cancelled", of, "Cancelled the job.")

    def pause(self, job_id: str) -> JobObject:
        """Mark a job as paused; raises a 400 if it is neither queued nor running."""
        return self._change(job_id, "paused", ("queued", "running"), "Paused the job.")

    def resume(self, job_id: str) -> JobObject:
        """Requeue a paused job; raises a 400 if it is not paused."""
        return self._change(job_id, "queued", ("paused",), "Resumed the job; it starts over.")

    def _change(
        self, job_id: str, to: JobStatus, of: Sequence[JobStatus], message: str
    ) -> JobObject:
        with self._database.transaction() as connection:
            row = self.row(job_id)
            if row["status"] not in of:
                state = "has ended already:" if row["finished_at"] is not None else "is"
                raise ApiError(
                    400,
                    f"The job {job_id} {state} {row['status']}. Only one that is"
                    f" {' or '.join(of)} can become {to}.",
                    code=_NOT_CHANGEABLE[to],
                    param="fine_tuning_job_id",
                )
            finished = int(time.time()) if to == "cancelled" else None
            connection.execute(
                "UPDATE jobs SET status = ?, finished_at = ? WHERE id = ?", (to, finished, job_id)
            )
            add_event(connection, job_id, message)
            return self.get(job_id)  # as changed here: later changes may have followed

    def _content(self, request: CreateJobRequest) -> JobContent:
        self._models.get(request.model)
        method = request.resolved_method
        training = self._training_file(request.training_file, method.type, "training_file")
        validation = None
        if request.validation_file is not None:
            validation = self._training_file(
                request.validation_file, method.type, "validation_file"
            )
        return JobContent(
            model=request.model,
            method=method.type,
            hyperparameters=method.hyperparameters,
            suffix=request.suffix,
            training_sha256=training.sha256,
            validation_sha256=None if validation is None else validation.sha256,
            seed=request.seed,
        )

    def _training_file(self, file_id: str, method: Method, param: str) -> StoredFile:
        file = self._files.get(file_id, param=param)
        fewest = self._limits.examples_min if param == "training_file" else 1
        if file.purpose != "fine-tune":
            problem = f"has the purpose {file.purpose!r}, expected 'fine-tune'"
        elif file.kind != method:
            problem = f"contains {file.kind} examples, expected those of the method {method!r}"
        elif file.examples < fewest:
            problem = f"has {file.examples} example(s), but must have at least {fewest}"
        else:
            return file
        message = f"The file {file_id} {problem}."
        raise ApiError(400, message, code="invalid_training_file", param=param)

    def _require_same(self, job_row: sqlite3.Row, request: CreateJobRequest) -> None:
        """Refuse a key that another request has used; a deleted file cannot be compared."""
        try:
            same = self._content(request).identity() == job_row["identity"]
        except ApiError as error:
            same = error.status == 404 and request.training_file == job_row["training_file"]
        if not same:
            raise ApiError(
                400,
                f"The idempotency key was used for the job {job_row['id']}, which has different"
                " parameters. Use a new key for a new job.",
                code="idempotency_key_reused",
                param="metadata.idempotency_key",
            )

    def _require_room(self, connection: sqlite3.Connection) -> None:
        statement = f"SELECT COUNT(*) FROM jobs WHERE {UNFINISHED}"
        waiting = connection.execute(statement).fetchone()[0]
        if waiting >= self._limits.queued_jobs:
            raise ApiError(
                429,
                f"{waiting} fine-tuning jobs are queued already, the maximum. Try again later.",
                code="queue_full",
                headers={"Retry-After": "10"},
            )


def add_event(
    connection: sqlite3.Connection, job_id: str, message: str, *, level: str = "info"
) -> None:
    """Record an event with a message."""
    connection.execute(
        "INSERT INTO events (id, job_id, created_at, level, message, type, data)"
        " VALUES (?, ?, ?, ?, ?, 'message', '{}')",
        (f"ftevent-{secrets.token_hex(12)}", job_id, int(time.time()), level, message),
    )


def _idempotency_key(request: CreateJobRequest, header_key: str | None) -> str | None:
    in_metadata = (request.metadata or {}).get("idempotency_key")
    if header_key is not None and in_metadata is not None and header_key != in_metadata:
        raise ApiError(
            400,
            "The header Idempotency-Key and metadata.idempotency_key differ; send one.",
            code="idempotency_keys_differ",
            param="metadata.idempotency_key",
        )
    return in_metadata if header_key is None else header_key
