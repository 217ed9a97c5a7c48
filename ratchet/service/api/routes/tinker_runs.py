"""``/api/v1/training_runs``, ``…/checkpoints``: trained models, saved weights, downloads."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from pydantic import Field

from ratchet.service.api.auth import DOWNLOADS_PATH
from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.api.tinker.requests import WireModel
from ratchet.service.api.tinker.runs import Json, TrainingRuns
from ratchet.service.models import ModelRegistry
from ratchet.service.service import ModelService
from ratchet.service.training_sessions.checkpoints import Checkpoints

_PATH = "/training_runs/{run}/checkpoints/{kind}/{name}"
_EXPORTED = re.compile(
    r"(?!base\.json).*\.(json|jinja|txt|model)|(adapter_)?model.*\.safetensors"  # not the state
)
_VALID_SECONDS = 3600
_DONE = 204
_Limit = Annotated[int, Query(ge=1, le=1000)]
_Offset = Annotated[int, Query(ge=0)]


class Downloads:
    """Signs and checks URLs of the files of saved weights, which need no key.

    A URL is valid for an hour, until the service stops at most: its secret is not stored.
    """

    def __init__(self, models: ModelRegistry, checkpoints: Checkpoints) -> None:
        self._models = models
        self._checkpoints = checkpoints
        self._secret = secrets.token_bytes(32)

    def urls(self, path: str, base_url: str) -> dict[str, Any]:
        """Return a URL for each file of saved weights, and when the URLs expire."""
        expires = int(time.time()) + _VALID_SECONDS
        query = f"expires={expires}&signature={self._sign(path, expires)}"
        base = f"{base_url.rstrip('/')}{DOWNLOADS_PATH}{quote(path)}"
        urls = {name: f"{base}/{quote(name)}?{query}" for name in self._files(path)}
        return {"urls": urls, "expires": expires}

    def file(self, path: str, name: str, expires: int, signature: str) -> Path:
        """Return a file of saved weights."""
        is_signed = hmac.compare_digest(signature.encode(), self._sign(path, expires).encode())
        if not is_signed or expires < time.time():
            message = "The URL is invalid or has expired. Request the weights' URLs again."
            raise ApiError(403, message, code="expired_url")
        files = self._files(path)
        if name not in files:
            raise not_found("file", name)
        return files[name]

    def _files(self, path: str) -> dict[str, Path]:
        folder = self._models.get(self._checkpoints.get(path).model).folder
        files = sorted(folder.iterdir())
        return {file.name: file for file in files if _EXPORTED.fullmatch(file.name)}

    def _sign(self, path: str, expires: int) -> str:
        return hmac.new(self._secret, f"{expires} {path}".encode(), hashlib.sha256).hexdigest()


class PathOfWeights(WireModel):
    """The path of saved weights."""

    tinker_path: str


class TimeToLive(WireModel):
    """Seconds until saved weights expire; None for never."""

    ttl_seconds: Annotated[int, Field(ge=1)] | None = None


def tinker_run_routes(service: ModelService) -> APIRouter:
    """Create the routes."""
    router = APIRouter(prefix="/api/v1", include_in_schema=False)
    runs, checkpoints = TrainingRuns(service), service.training.checkpoints

    @router.get("/training_runs")
    def training_runs(limit: _Limit = 20, offset: _Offset = 0) -> Json:
        return runs.page(limit, offset)

    @router.get("/training_runs/{run}")
    def training_run(run: str) -> Json:
        return runs.describe(runs.session(run))

    @router.get("/training_runs/{run}/checkpoints")
    def checkpoints_of_run(run: str, limit: _Limit = 1000, offset: _Offset = 0) -> Json:
        return runs.checkpoints(run, limit, offset)

    @router.get("/checkpoints")
    def all_checkpoints(limit: _Limit = 100, offset: _Offset = 0) -> Json:
        return runs.checkpoints(None, limit, offset)

    @router.post("/weights_info")
    def weights_info(body: PathOfWeights) -> Json:
        return runs.weights_info(body.tinker_path)

    @router.delete(_PATH, status_code=_DONE)
    def delete(run: str, kind: str, name: str) -> None:
        runs.delete(f"{run}/{kind}/{name}")

    @router.post(f"{_PATH}/publish", status_code=_DONE)
    def publish(run: str, kind: str, name: str) -> None:
        checkpoints.publish(f"{run}/{kind}/{name}", is_public=True)

    @router.delete(f"{_PATH}/publish", status_code=_DONE)
    def unpublish(run: str, kind: str, name: str) -> None:
        checkpoints.publish(f"{run}/{kind}/{name}", is_public=False)

    @router.put(f"{_PATH}/ttl", status_code=_DONE)
    def set_ttl(run: str, kind: str, name: str, body: TimeToLive) -> None:
        checkpoints.set_ttl(f"{run}/{kind}/{name}", body.ttl_seconds)

    @router.get("/sessions")
    def sessions(limit: _Limit = 20, offset: _Offset = 0) -> Json:
        return runs.sessions(limit, offset)

    @router.get("/sessions/{name}")
    def session(name: str) -> Json:
        return runs.client_session(name)

    _add_downloads(router, Downloads(service.models, checkpoints))
    return router


def _add_downloads(router: APIRouter, downloads: Downloads) -> None:
    @router.get("/training_runs/{run}/checkpoints/external_weights/{name}/external_weights_urls")
    def urls(request: Request, run: str, name: str) -> Json:
        return downloads.urls(f"{run}/external_weights/{name}", str(request.base_url))

    prefix = DOWNLOADS_PATH.removeprefix(router.prefix)

    @router.get(f"{prefix}{{run}}/external_weights/{{name}}/{{file}}")
    def download(run: str, name: str, file: str, expires: int, signature: str) -> FileResponse:
        path = f"{run}/external_weights/{name}"
        return FileResponse(downloads.file(path, file, expires, signature))
