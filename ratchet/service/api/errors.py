"""Errors in OpenAI's format: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from openai.types.shared import ErrorObject
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ratchet.errors import RatchetError
from ratchet.language_models.engines.interface import EngineError, RequestRefusedError
from ratchet.service.api.schemas.unsupported import UNSUPPORTED
from ratchet.service.jobs.trainer_process import NO_ROOM_ERRORS

logger = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
_ENGINE_STATUSES = {"model_not_found": 404, "queue_full": 429, "stopping": 503}


class ApiErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorObject


class ApiError(RatchetError, RuntimeError):
    """A request failed; becomes a response in OpenAI's format.

    Parameters
    ----------
    status
        HTTP status, 4xx (5xx if the service itself failed).
    code
        A machine-readable identifier.
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
    """Create the 404 for an unknown model, file or job; ``more`` is appended."""
    code = "model_not_found" if kind == "model" else f"{kind.replace(' ', '_')}_not_found"
    return ApiError(404, f"The {kind} {name!r} does not exist.{more}", code=code, param=param)


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
    """Create a response in OpenAI's format; its type follows from the status."""
    if status == 429:
        kind = "rate_limit_error"
    elif status >= 500:
        kind = "server_error"
    else:
        kind = INVALID_REQUEST
    error = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def from_validation(problems: Sequence[Any], *, sent: object = None, skip: int = 0) -> ApiError:
    """Create the 400 for a request that does not fit its schema.

    Parameters
    ----------
    problems
        Pydantic's list of errors; the first is reported.
    sent
        The parsed request, to distinguish its field names from names in the schema.
    skip
        Number of leading location parts that do not concern the client (``query``, ``path``).
    """
    problem = _of_the_sent_type(problems)
    kind, location = problem["type"], location_of(problem, sent=sent, skip=skip)
    if kind == "extra_forbidden":
        message, code = f"Unknown parameter: {location!r}.", "unknown_parameter"
    elif kind == "missing":
        message, code = f"Missing required parameter: {location!r}.", "missing_required_parameter"
    elif kind == UNSUPPORTED:
        message = f"Unsupported value: {location!r} is not supported here. {problem['msg']}"
        code = "unsupported_parameter"
    elif kind == "json_invalid":
        message, code = f"The request is not valid JSON: {problem['msg']}.", "invalid_json"
    else:
        where = f"Invalid value for {location!r}: " if location else "Invalid request: "
        message, code = f"{where}{problem['msg']}.", "invalid_value"
    return ApiError(400, message, code=code, param=location or None)


def _of_the_sent_type(problems: Sequence[Any]) -> Any:  # noqa: ANN401 -- a pydantic error
    """Return an unsupported field, or the first error; of a union, that of the type sent."""
    first = problems[0]
    if unsupported := [each for each in problems if each["type"] == UNSUPPORTED]:
        return unsupported[0]
    if first["type"] != "literal_error" or isinstance(first.get("input"), str):
        return first
    others = [
        each
        for each in problems
        if each["loc"][:-1] == first["loc"][:-1] and each["type"] != "literal_error"
    ]
    return others[0] if others else first


def location_of(problem: Mapping[str, Any], *, sent: object, skip: int = 0) -> str:
    """Format the location of a pydantic error as OpenAI does: ``messages[0].role``.

    Parameters
    ----------
    problem
        A pydantic error. Its location includes the names of union members, which are not in the
        request and are omitted.
    sent
        The parsed request; None if unknown, which keeps all names.
    skip
        Number of leading parts to omit.
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
    """Return all errors of the app in OpenAI's format."""

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
        message = f"The service's disk is full ({error}). Free disk space and retry."
        return error_response(507, message, code="insufficient_storage")

    async def on_anything(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(500, "The service failed; see its log.", code="internal_error")

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(EngineError, on_engine_error)
    app.add_exception_handler(RequestRefusedError, on_engine_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(OSError, on_disk)
    app.add_exception_handler(sqlite3.OperationalError, on_disk)
    app.add_exception_handler(Exception, on_anything)


def _is_full_disk(error: Exception) -> bool:
    """Return whether a file, or SQLite's database, could not be written for lack of space."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM_ERRORS
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
