"""``/v1/chat/completions`` and ``/v1/models``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from ratchet.language_models.service.api.completions import Answer, generation_requests
from ratchet.language_models.service.api.request_reading import body_of, read_body, refuse_unknown
from ratchet.language_models.service.api.schemas.chat import ChatCompletion, ChatCompletionRequest
from ratchet.language_models.service.api.schemas.objects import Deleted, ModelList, ModelObject
from ratchet.language_models.service.service import ModelService


def chat_routes(service: ModelService) -> APIRouter:
    """Make the routes that ask models."""
    router = APIRouter(prefix="/v1", tags=["chat"])

    @router.post(
        "/chat/completions",
        response_model=ChatCompletion,
        openapi_extra=body_of(ChatCompletionRequest),
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer a chat, whole or as a stream."""
        refuse_unknown(request, ())
        asked = await read_body(request, ChatCompletionRequest)
        model = service.models.get(asked.model)
        results = await service.batcher.generate(model, generation_requests(asked))
        answer = Answer(asked, results)
        if asked.stream:
            return StreamingResponse(answer.to_events(), media_type="text/event-stream")
        return Response(answer.to_json(), media_type="application/json")

    return router


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
