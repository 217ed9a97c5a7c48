"""``/v1/models``, and models that clients upload: ``/v1/training/models``, ``…/tokenizer``."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, Request
from openai.types import ModelDeleted
from safetensors import SafetensorError, safe_open
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ratchet.errors import DataError
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.training_service.models import check_model_files, uploaded_model_id
from ratchet.service.api.errors import ApiError
from ratchet.service.api.request_parsing import StrictRoute, form_of
from ratchet.service.api.schemas.objects import (
    ModelList,
    ModelObject,
    TokenizerObject,
)
from ratchet.service.models import ModelRegistry
from ratchet.service.service import ModelService


def model_routes(service: ModelService) -> APIRouter:
    """Create the routes that list and delete models."""
    router = APIRouter(prefix="/v1/models", tags=["models"], route_class=StrictRoute)

    @router.get("", response_model_exclude_unset=True)
    def list_models() -> ModelList:
        """List the models."""
        return service.models.list()

    @router.get("/{model:path}", response_model_exclude_unset=True)
    def retrieve_model(model: str) -> ModelObject:
        """Return one model."""
        return service.models.describe(model)

    @router.delete("/{model:path}")
    async def delete_model(model: str) -> ModelDeleted:
        """Delete a fine-tuned model."""
        await run_in_threadpool(service.models.delete, model)
        service.batcher.forget(model)
        return ModelDeleted(id=model, object="model", deleted=True)

    return router


_MOST_FILES = 64
_BYTES = {"type": "string", "format": "binary"}
_UPLOAD = form_of(name={"type": "string"}, files={"type": "array", "items": _BYTES})


def training_model_routes(service: ModelService) -> APIRouter:
    """Create the routes for model uploads and tokenizer downloads."""
    router = APIRouter(prefix="/v1/training", tags=["training"], route_class=StrictRoute)

    @router.post("/models", response_model_exclude_unset=True, openapi_extra=_UPLOAD)
    async def create_model(request: Request) -> ModelObject:
        """Upload a model in Hugging Face's layout; equal files are the same model."""
        async with request.form(max_files=_MOST_FILES, max_fields=4) as form:
            uploads = [part for part in form.getlist("files") if isinstance(part, UploadFile)]
            files = {part.filename or "": await part.read() for part in uploads}
            name = form.get("name")
        if not isinstance(name, str):
            message = "Missing required parameter: 'name'."
            raise ApiError(400, message, code="missing_required_parameter", param="name")
        model = await run_in_threadpool(add_model, service.models, name, files)
        return service.models.describe(model)

    @router.get("/tokenizer")
    def tokenizer(model: str) -> TokenizerObject:
        """Return the files of a model's tokenizer."""
        return TokenizerObject(model=model, files=tokenizer_files(service.models, model))

    return router


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READABLE = frozenset({".json", ".jinja"})


def add_model(models: ModelRegistry, name: str, files: Mapping[str, bytes]) -> str:
    """Store a model; return its id, derived from its name and files."""
    if not _NAME.fullmatch(name):
        message = f"name: got {name!r}, expected 1 to 64 letters, digits, '.', '_' or '-'."
        raise ApiError(400, message, code="invalid_value", param="name")
    model_id = uploaded_model_id(name, files)
    upload_folder = Path(tempfile.mkdtemp(prefix="upload-", dir=models.folder))
    try:
        check_model_files(files)
        for file, content in files.items():
            if Path(file).suffix == ".json":
                json.loads(content)
            (upload_folder / file).write_bytes(content)
        _check_weights(upload_folder)
        ChatTokenizer(upload_folder)
        models.add(model_id, upload_folder)
    except ValueError as error:  # of JSON, or a DataError
        raise ApiError(400, str(error), code="invalid_value", param="files") from error
    finally:
        shutil.rmtree(upload_folder, ignore_errors=True)
    return model_id


def tokenizer_files(models: ModelRegistry, model_id: str) -> dict[str, str]:
    """Return the files of a model's tokenizer by name."""
    from ratchet.language_models.local.model_files import configuration_files

    folder = models.get(model_id).complete_folder
    files = [file for file in configuration_files(folder) if file.suffix in _READABLE]
    return {file.name: file.read_text("utf-8") for file in files}


def _check_weights(folder: Path) -> None:
    """Refuse truncated files and files that are not safetensors, by their headers."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np"):
                pass
        except SafetensorError as error:
            raise DataError(
                f"{file.name}: cannot be read as safetensors ({error}), expected a whole file."
                " Save the model again."
            ) from error
