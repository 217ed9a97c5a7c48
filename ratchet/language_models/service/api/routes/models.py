"""``/v1/models``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from ratchet.language_models.service.api.request_reading import refuse_unknown
from ratchet.language_models.service.api.schemas.objects import Deleted, ModelList, ModelObject
from ratchet.language_models.service.service import ModelService


def model_routes(service: ModelService) -> APIRouter:
    """Make the routes that tell which models there are."""
    router = APIRouter(prefix="/v1/models", tags=["models"])

    @router.get("", response_model=ModelList)
    def list_models(request: Request) -> ModelList:
        """List the models."""
        refuse_unknown(request, ())
        return service.models.list()

    @router.get("/{model:path}", response_model=ModelObject)
    def retrieve_model(request: Request, model: str) -> ModelObject:
        """Show one model."""
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
