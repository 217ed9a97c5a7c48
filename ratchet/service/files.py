"""Uploaded files and files that jobs have written: rows in the database, bytes on the disk.

Training files, JSON lines in OpenAI's two formats, are checked; errors name the line and field, as
in ``line 3, messages[1].role: …``.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from openai.types import FileObject
from pydantic import Field, JsonValue, ValidationError, model_validator

from ratchet.errors import DataError
from ratchet.service.api.errors import ApiError, location_of, not_found
from ratchet.service.api.schemas.messages import (
    AssistantMessageBody,
    MessageBody,
    RequestModel,
    ToolMessageBody,
)
from ratchet.service.api.schemas.objects import Page
from ratchet.service.api.schemas.unsupported import NO_TOOLS, UNSUPPORTED
from ratchet.service.database import UNFINISHED, Database, Value, record_deleted
from ratchet.service.settings import Limits
from ratchet.service.training.job_folder import Method

Purpose = Literal["fine-tune", "fine-tune-results"]
_INSERT = (
    "INSERT INTO files (id, filename, purpose, bytes, created_at, sha256, kind, examples)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A job's input file."""

    id: str
    path: Path
    sha256: str
    purpose: str
    kind: str | None
    examples: int


class FileStore:
    """All files of a service. Files without a row in the database are deleted."""

    def __init__(self, database: Database, folder: Path, limits: Limits) -> None:
        self._database = database
        self._folder = folder
        self._limits = limits
        folder.mkdir(parents=True, exist_ok=True)
        known = {row["id"] for row in database.rows("SELECT id FROM files")}
        for path in folder.iterdir():
            if path.name not in known:  # an interrupted upload
                path.unlink()

    def add_training_file(self, filename: str, content: BinaryIO) -> FileObject:
        """Check and store an uploaded training file."""
        content.seek(0)
        try:
            checked = check_training_file(content, examples_max=self._limits.examples_max)
        except DataError as error:
            message = f"The file {filename!r} cannot be used for fine-tuning: {error}"
            raise ApiError(400, message, code="invalid_training_file", param="file") from error
        content.seek(0)
        return self._keep(filename, "fine-tune", content, checked.method, checked.examples)

    def add_result_file(self, filename: str, content: BinaryIO) -> FileObject:
        """Store a job's result file."""
        return self._keep(filename, "fine-tune-results", content, None, 0)

    def get(self, file_id: str, *, param: str = "file_id") -> StoredFile:
        """Return a file; raises a 404 if it does not exist."""
        row = self._row(file_id, param)
        return StoredFile(
            id=row["id"],
            path=self._folder / row["id"],
            sha256=row["sha256"],
            purpose=row["purpose"],
            kind=row["kind"],
            examples=row["examples"],
        )

    def describe(self, file_id: str) -> FileObject:
        """Return a file in the API's format."""
        return _to_object(self._row(file_id, "file_id"))

    def page(
        self, *, after: str | None, limit: int, ascending: bool, purpose: str | None
    ) -> Page[FileObject]:
        """List files in upload order."""
        where, values = list[str](), list[Value]()
        if purpose is not None:
            where.append("purpose = ?")
            values.append(purpose)
        if after is not None:
            where.append("sequence > ?" if ascending else "sequence < ?")
            values.append(self._row(after, "after")["sequence"])
        rows, has_more = self._database.page("files", where, values, limit, ascending=ascending)
        objects = [_to_object(row) for row in rows]
        return Page(object="list", data=objects, has_more=has_more)

    def delete(self, file_id: str, *, reason: str = "a client requested it") -> None:
        """Delete a file, unless a job still requires it (409)."""
        with self._database.transaction() as connection:
            self._row(file_id, "file_id")
            job = connection.execute(
                f"SELECT id FROM jobs WHERE {UNFINISHED}"
                " AND (training_file = ? OR validation_file = ?)",
                (file_id, file_id),
            ).fetchone()
            if job is not None:
                message = f"The job {job['id']} needs the file {file_id}; cancel that job first."
                raise ApiError(409, message, code="file_in_use", param="file_id")
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
            record_deleted(connection, "file", file_id, reason)
        (self._folder / file_id).unlink(missing_ok=True)

    def _keep(
        self, filename: str, purpose: Purpose, content: BinaryIO, kind: str | None, examples: int
    ) -> FileObject:
        file_id = f"file-{secrets.token_hex(12)}"
        path = self._folder / file_id
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
                file.flush()
                os.fsync(file.fileno())
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            size, now = path.stat().st_size, int(time.time())
            with self._database.transaction() as connection:
                values = (file_id, filename, purpose, size, now, digest, kind, examples)
                connection.execute(_INSERT, values)
        except BaseException:
            path.unlink(missing_ok=True)  # otherwise a full disk stays full
            raise
        return self.describe(file_id)

    def _row(self, file_id: str, param: str) -> sqlite3.Row:
        row = self._database.row("SELECT * FROM files WHERE id = ?", (file_id,))
        if row is None:
            more = self._database.deletion("file", file_id)
            raise not_found("file", file_id, param=param, more=more)
        return row


def _to_object(row: sqlite3.Row) -> FileObject:
    return FileObject(
        object="file",
        id=row["id"],
        bytes=row["bytes"],
        created_at=row["created_at"],
        filename=row["filename"],
        purpose=row["purpose"],
        status="processed",
    )


class WeightedAssistantMessage(AssistantMessageBody):
    """An assistant message to learn, or only to read if ``weight`` is 0."""

    weight: Literal[0, 1] | None = None


ExampleMessage = Annotated[
    MessageBody | WeightedAssistantMessage | ToolMessageBody, Field(discriminator="role")
]
Messages = Annotated[list[ExampleMessage], Field(min_length=1)]


class ExampleInput(RequestModel):
    """Messages of an example, with OpenAI's settings of tools, none of which has an effect."""

    messages: Messages
    tools: Annotated[JsonValue, NO_TOOLS] = None
    functions: Annotated[JsonValue, NO_TOOLS] = None
    parallel_tool_calls: bool | None = None


class SupervisedExample(ExampleInput):
    """A chat whose assistant messages the model learns."""

    @model_validator(mode="after")
    def _teaches_something(self) -> SupervisedExample:
        if self.messages[-1].role != "assistant":
            raise ValueError("the last message must be the assistant's")
        if not any(m.role == "assistant" and getattr(m, "weight", 1) != 0 for m in self.messages):
            raise ValueError("no assistant message has a weight other than 0")
        return self


OneAnswer = Annotated[list[AssistantMessageBody], Field(min_length=1, max_length=1)]


class PreferenceExample(RequestModel):
    """A prompt, the preferred response and the rejected one."""

    input: ExampleInput
    preferred_output: OneAnswer
    non_preferred_output: OneAnswer


_EXAMPLES: dict[Method, type[SupervisedExample] | type[PreferenceExample]] = {
    "supervised": SupervisedExample,
    "dpo": PreferenceExample,
}


@dataclass(frozen=True, slots=True)
class TrainingFileContent:
    """The method that a training file is for, and its number of examples."""

    method: Method
    examples: int


def check_training_file(lines: Iterable[bytes], *, examples_max: int) -> TrainingFileContent:
    """Check every line of a training file; the first line determines the format of all."""
    method: Method | None = None
    blank, count = 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise DataError(f"line {blank} is empty; expected a JSON object on every line.")
        if method is None:
            method = _method_of(line)
        _check_line(line, number, method)
        count += 1
        if count > examples_max:
            raise DataError(f"more than {examples_max} examples, the most that is taken.")
    if method is None:
        raise DataError("the file is empty; expected one JSON object per line.")
    return TrainingFileContent(method, count)


def _method_of(line: bytes) -> Method:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "supervised"  # the line's own check refuses it
    is_preference = isinstance(content, dict) and "input" in content and "messages" not in content
    return "dpo" if is_preference else "supervised"


def _check_line(line: bytes, number: int, method: Method) -> None:
    try:
        _EXAMPLES[method].model_validate_json(line)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problem = next((p for p in problems if p["type"] == UNSUPPORTED), problems[0])
        if problem["type"] == "json_invalid":
            raise DataError(f"line {number} is not valid JSON: {problem['msg']}.") from error
        location = location_of(problem, sent=json.loads(line))
        where = f"line {number}, {location}" if location else f"line {number}"
        raise DataError(f"{where}: {problem['msg'].rstrip('.')} (a {method} example).") from error
