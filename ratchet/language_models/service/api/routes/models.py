"""``/v1/models``, ``/v1/training/models`` and ``/v1/training/tokenizer``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ratchet.language_models.service.api.errors import ApiError
from ratchet.language_models.service.api.request_parsing import refuse_unknown
from ratchet.language_models.service.api.schemas.objects import (
    Deleted,
    ModelList,
    ModelObject,
    TokenizerObject,
)
from ratchet.language_models.service.service import ModelService
from ratchet.language_models.service.training_sessions.uploads import add_model, tokenizer_files


def model_routes(service: ModelService) -> APIRouter:
    """Create the routes that list and delete models."""
    router = APIRouter(prefix="/v1/models", tags=["models"])

    @router.get("", response_model=ModelList)
    def list_models(request: Request) -> ModelList:
        """List the models."""
        refuse_unknown(request, ())
        return service.models.list()

    @router.get("/{model:path}", response_model=ModelObject)
    def retrieve_model(request: Request, model: str) -> ModelObject:
        """Return one model."""
        refuse_unknown(request, ())
        return service.models.describe(model)

    @router.delete("/{model:path}", response_model=Deleted)
    async def delete_model(request: Request, model: str) -> Deleted:
        """Delete a fine-tuned model."""
        refuse_unknown(request, ())
        await run_in_threadpool(service.models.delete, model)
        service.batcher.forget(model)
        return Deleted(id=model, object="model")

    return router


_MOST_FILES = 64
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "files"],
                    "properties": {
                        "name": {"type": "string"},
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}


def training_model_routes(service: ModelService) -> APIRouter:
    """Create the routes for model uploads and tokenizer downloads."""
    router = APIRouter(prefix="/v1/training", tags=["training"])

    @router.post("/models", response_model=ModelObject, openapi_extra=_UPLOAD)
    async def create_model(request: Request) -> ModelObject:
        """Upload a model in Hugging Face's layout; equal files are the same model."""
        refuse_unknown(request, ())
        async with request.form(max_files=_MOST_FILES, max_fields=4) as form:
            uploads = [part for part in form.getlist("files") if isinstance(part, UploadFile)]
            files = {part.filename or "": await part.read() for part in uploads}
            name = form.get("name")
        if not isinstance(name, str):
            message = "Missing required parameter: 'name'."
            raise ApiError(400, message, code="missing_required_parameter", param="name")
        model = await run_in_threadpool(add_model, service.models, name, files)
        return service.models.describe(model)

    @router.get("/tokenizer", response_model=TokenizerObject)
    def tokenizer(request: Request, model: str) -> TokenizerObject:
        """Return the files of a model's tokenizer."""
        refuse_unknown(request, ("model",))
        return TokenizerObject(model=model, files=tokenizer_files(service.models, model))

    return router
