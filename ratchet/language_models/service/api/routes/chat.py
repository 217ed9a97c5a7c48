"""``/v1/chat/completions``, ``/v1/completions``, ``/v1/responses``, ``/v1/embeddings``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ratchet.language_models.service.api.chat_answers import ChatAnswer, generation_requests
from ratchet.language_models.service.api.embeddings import embedding_requests, to_embeddings
from ratchet.language_models.service.api.request_reading import body_of, read_body, refuse_unknown
from ratchet.language_models.service.api.response_answers import ResponseAnswer, response_request
from ratchet.language_models.service.api.schemas.chat import ChatCompletion, ChatCompletionRequest
from ratchet.language_models.service.api.schemas.completions import (
    TextCompletion,
    TextCompletionRequest,
)
from ratchet.language_models.service.api.schemas.embeddings import (
    EmbeddingsObject,
    EmbeddingsRequest,
)
from ratchet.language_models.service.api.schemas.responses import ResponseObject, ResponseRequest
from ratchet.language_models.service.api.streaming import streamed
from ratchet.language_models.service.api.text_answers import TextAnswer, text_requests
from ratchet.language_models.service.service import ModelService

_JSON = "application/json"
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {}}}}}


def chat_routes(service: ModelService) -> APIRouter:
    """Make the routes that ask models."""
    router = APIRouter(prefix="/v1", tags=["chat"])

    _add_chat(router, service)
    _add_text(router, service)
    _add_responses(router, service)
    _add_embeddings(router, service)
    return router


def _add_chat(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/chat/completions",
        response_model=ChatCompletion,
        openapi_extra=body_of(ChatCompletionRequest),
        responses=_STREAM,
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer a chat, whole or as a stream."""
        refuse_unknown(request, ())
        asked = await read_body(request, ChatCompletionRequest)
        model, wanted = await service.find(asked.model), generation_requests(asked)
        answer = ChatAnswer(asked)
        if asked.stream:
            return await streamed(answer.events(service.batcher.stream(model, wanted)))
        results = await service.batcher.generate(model, wanted)
        return Response(answer.whole(results), media_type=_JSON)


def _add_text(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/completions",
        response_model=TextCompletion,
        openapi_extra=body_of(TextCompletionRequest),
        responses=_STREAM,
    )
    async def create_completion(request: Request) -> Response:
        """Continue texts as they are, without a chat template."""
        refuse_unknown(request, ())
        asked = await read_body(request, TextCompletionRequest)
        model, wanted = await service.find(asked.model), text_requests(asked)
        answer = TextAnswer(asked)
        if asked.stream:
            return await streamed(answer.events(service.batcher.stream(model, wanted)))
        results = await service.batcher.generate(model, wanted)
        return Response(answer.whole(results), media_type=_JSON)


def _add_responses(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/responses",
        response_model=ResponseObject,
        openapi_extra=body_of(ResponseRequest),
        responses=_STREAM,
    )
    async def create_response(request: Request) -> Response:
        """Answer with text; nothing is stored."""
        refuse_unknown(request, ())
        asked = await read_body(request, ResponseRequest)
        model, wanted = await service.find(asked.model), response_request(asked)
        answer = ResponseAnswer(asked)
        if asked.stream:
            return await streamed(answer.events(service.batcher.stream(model, [wanted])))
        (result,) = await service.batcher.generate(model, [wanted])
        return Response(answer.whole(result), media_type=_JSON)


def _add_embeddings(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/embeddings", response_model=EmbeddingsObject, openapi_extra=body_of(EmbeddingsRequest)
    )
    async def create_embeddings(request: Request) -> Response:
        """Turn texts into vectors: the mean of what the model's last layer gives for each token."""
        refuse_unknown(request, ())
        asked = await read_body(request, EmbeddingsRequest)
        model = await service.find(asked.model)
        results = await service.batcher.embed(model, embedding_requests(asked))
        return Response(to_embeddings(asked, results), media_type=_JSON)
