"""``/v1/training/models`` and ``/v1/training/tokenizer``: what a trainer brings and reads."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ratchet.language_models.service.api.errors import ApiError
from ratchet.language_models.service.api.request_reading import refuse_unknown
from ratchet.language_models.service.api.schemas.objects import ModelObject
from ratchet.language_models.service.api.schemas.training import TokenizerObject
from ratchet.language_models.service.service import ModelService
from ratchet.language_models.service.training_sessions.uploads import add_model, tokenizer_files

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
    """Make the routes that take models to be trained, and give their tokenizers."""
    router = APIRouter(prefix="/v1/training", tags=["training"])

    @router.post("/models", response_model=ModelObject, openapi_extra=_UPLOAD)
    async def create_model(request: Request) -> ModelObject:
        """Take a model in Hugging Face's layout; the same files are the same model."""
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
        """Return the files that a model's tokenizer is made of."""
        refuse_unknown(request, ("model",))
        return TokenizerObject(model=model, files=tokenizer_files(service.models, model))

    return router
