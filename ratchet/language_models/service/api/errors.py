"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ratchet.errors import RatchetError
from ratchet.language_models.service.engine.interface import EngineError, RequestRefusedError
from ratchet.language_models.service.jobs.trainer_process import NO_ROOM_ERRORS

logger = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
_ENGINE_STATUSES = {"model_not_found": 404, "queue_full": 429, "stopping": 503}


class ApiErrorContent(BaseModel):
    """What the client's SDK reads."""

    message: str
    type: str
    param: str | None
    code: str | None


class ApiErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ApiErrorContent


class ApiError(RatchetError, RuntimeError):
    """A request cannot be answered; becomes a response in OpenAI's shape.

    Parameters
    ----------
    status
        HTTP status, 4xx (5xx if it is the service's own fault).
    code
        A word that programs can compare.
    param
        The field at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def to_response(self) -> JSONResponse:
        """Return the response."""
        return error_response(
            self.status, str(self), code=self.code, param=self.param, headers=self.headers
        )


def not_found(kind: str, name: str, *, param: str | None = "id", more: str = "") -> ApiError:
    """Make the 404 for an unknown model, file or job; ``more`` is said after that."""
    code = "model_not_found" if kind == "model" else f"{kind.replace(' ', '_')}_not_found"
    return ApiError(404, f"There is no {kind} {name!r} here.{more}", code=code, param=param)


def from_engine(error: EngineError | RequestRefusedError) -> ApiError:
    """Return the API's error for one of the engine's: 400, 404, 429, 503 or 500."""
    if isinstance(error, RequestRefusedError):
        return ApiError(400, str(error), code=error.code, param=error.param)
    status = _ENGINE_STATUSES.get(error.code, 500)
    return ApiError(
        status,
        str(error),
        code=error.code,
        param="model" if status == 404 else None,
        headers={"Retry-After": "1"} if status == 429 else None,
    )


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Make a response in OpenAI's shape; its type follows from the status."""
    if status == 429:
        kind = "rate_limit_error"
    elif status >= 500:
        kind = "server_error"
    else:
        kind = INVALID_REQUEST
    error = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def from_validation(problems: Sequence[Any], *, sent: object = None, skip: int = 0) -> ApiError:
    """Make the 400 for a request that does not fit its schema.

    Parameters
    ----------
    problems
        Pydantic's list of errors; the first is told.
    sent
        What was sent, parsed; tells the sender's names in a place from the schema's.
    skip
        How many leading parts of its place do not concern the client (``query``, ``path``).
    """
    problem = problems[0]
    kind, place = problem["type"], place_of(problem, sent=sent, skip=skip)
    if kind == "extra_forbidden":
        message, code = f"Unknown parameter: {place!r}.", "unknown_parameter"
    elif kind == "missing":
        message, code = f"Missing required parameter: {place!r}.", "missing_required_parameter"
    elif kind == "json_invalid":
        message, code = f"The request is not valid JSON: {problem['msg']}.", "invalid_json"
    else:
        where = f"Invalid value for {place!r}: " if place else "Invalid request: "
        message, code = f"{where}{problem['msg']}.", "invalid_value"
    return ApiError(400, message, code=code, param=place or None)


def place_of(problem: Mapping[str, Any], *, sent: object, skip: int = 0) -> str:
    """Write the place of a pydantic error as OpenAI does: ``messages[0].role``.

    Parameters
    ----------
    problem
        One of pydantic's errors. Its place also names the members of unions; these are left out,
        since they are not in what was sent.
    sent
        What was sent, parsed; None if unknown, and then all names are kept.
    skip
        How many leading parts to leave out.
    """
    parts = problem["loc"][skip:]
    text, here = "", sent
    for position, part in enumerate(parts):
        if isinstance(part, int) and isinstance(here, list) and part < len(here):
            text, here = f"{text}[{part}]", here[part]
        elif isinstance(here, dict) and part in here:
            text, here = _joined(text, part), here[part]
        elif sent is None or (problem["type"] == "missing" and position == len(parts) - 1):
            text, here = _joined(text, part), None
    return text.encode("utf-8", "replace").decode()


def _joined(text: str, part: object) -> str:
    return f"{text}.{part}" if text else str(part)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the app leave in OpenAI's shape."""

    async def on_api_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.to_response()

    async def on_engine_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, EngineError | RequestRefusedError)
        return from_engine(error).to_response()

    async def on_validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return from_validation(error.errors(), skip=1).to_response()

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}."
        return error_response(error.status_code, message, headers=error.headers)

    async def on_disk(request: Request, error: Exception) -> JSONResponse:
        if not _is_full_disk(error):
            return await on_anything(request, error)
        logger.error("%s %s: %s", request.method, request.url.path, error)
        message = f"The service has no room on its disk ({error}). Free space there and try again."
        return error_response(507, message, code="insufficient_storage")

    async def on_anything(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(500, "The service failed; its log says why.", code="internal_error")

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(EngineError, on_engine_error)
    app.add_exception_handler(RequestRefusedError, on_engine_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(OSError, on_disk)
    app.add_exception_handler(sqlite3.OperationalError, on_disk)
    app.add_exception_handler(Exception, on_anything)


def _is_full_disk(error: Exception) -> bool:
    """Return whether a file could not be written, or SQLite's database, for want of room."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM_ERRORS
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
