"""``/v1/chat/completions``, ``/v1/completions``, ``/v1/responses``, ``/v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from openai.types.chat import ChatCompletion

from ratchet.language_models.engines.interface import EmbeddingRequest, EmbeddingResult
from ratchet.service.api.chat_responses import ChatResponse, generation_requests
from ratchet.service.api.completion_responses import (
    CompletionResponse,
    text_requests,
)
from ratchet.service.api.request_parsing import StrictRoute, body_of, read_body
from ratchet.service.api.responses_endpoint import (
    ResponsesApiResponse,
    response_request,
)
from ratchet.service.api.schemas.chat import ChatCompletionRequest
from ratchet.service.api.schemas.completions import (
    EmbeddingsObject,
    EmbeddingsRequest,
    TextCompletion,
    TextCompletionRequest,
    prompts_of,
)
from ratchet.service.api.schemas.responses import ResponseObject, ResponseRequest
from ratchet.service.api.streaming import encode, streamed
from ratchet.service.service import ModelService

_JSON = "application/json"
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {}}}}}


def chat_routes(service: ModelService) -> APIRouter:
    """Create the routes of completions and embeddings."""
    router = APIRouter(prefix="/v1", tags=["chat"], route_class=StrictRoute)

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
        """Complete a chat, in one response or as a stream."""
        body = await read_body(request, ChatCompletionRequest)
        model, requests = await service.find(body.model), generation_requests(body)
        response = ChatResponse(body)
        if body.stream:
            return await streamed(response.events(service.batcher.stream(model, requests)))
        results = await service.batcher.generate(model, requests)
        return Response(response.complete(results), media_type=_JSON)


def _add_text(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/completions",
        response_model=TextCompletion,
        openapi_extra=body_of(TextCompletionRequest),
        responses=_STREAM,
    )
    async def create_completion(request: Request) -> Response:
        """Complete texts without a chat template."""
        body = await read_body(request, TextCompletionRequest)
        model, requests = await service.find(body.model), text_requests(body)
        response = CompletionResponse(body)
        if body.stream:
            return await streamed(response.events(service.batcher.stream(model, requests)))
        results = await service.batcher.generate(model, requests)
        return Response(response.complete(results), media_type=_JSON)


def _add_responses(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/responses",
        response_model=ResponseObject,
        openapi_extra=body_of(ResponseRequest),
        responses=_STREAM,
    )
    async def create_response(request: Request) -> Response:
        """Respond with text; responses are not stored."""
        body = await read_body(request, ResponseRequest)
        model, requests = await service.find(body.model), response_request(body)
        response = ResponsesApiResponse(body)
        if body.stream:
            return await streamed(response.events(service.batcher.stream(model, [requests])))
        (result,) = await service.batcher.generate(model, [requests])
        return Response(response.complete(result), media_type=_JSON)


def _add_embeddings(router: APIRouter, service: ModelService) -> None:
    @router.post(
        "/embeddings", response_model=EmbeddingsObject, openapi_extra=body_of(EmbeddingsRequest)
    )
    async def create_embeddings(request: Request) -> Response:
        """Embed texts: the mean of the model's last hidden states over all tokens."""
        body = await read_body(request, EmbeddingsRequest)
        model = await service.find(body.model)
        results = await service.batcher.embed(model, embedding_requests(body))
        return Response(to_embeddings(body, results), media_type=_JSON)


def embedding_requests(request: EmbeddingsRequest) -> list[EmbeddingRequest]:
    """Create a request for each input."""
    return [EmbeddingRequest(request.model, prompt) for prompt in prompts_of(request.input)]


def to_embeddings(request: EmbeddingsRequest, results: Sequence[EmbeddingResult]) -> bytes:
    """Encode the response."""
    used = sum(result.prompt_tokens for result in results)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(result.vector)
            if request.encoding_format == "base64"
            else list(result.vector),
        }
        for index, result in enumerate(results)
    ]
    usage = {"prompt_tokens": used, "total_tokens": used}
    return encode({"object": "list", "model": request.model, "data": data, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
