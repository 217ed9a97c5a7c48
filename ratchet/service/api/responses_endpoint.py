"""OpenAI's responses: requests to engine requests, and results to responses or events."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ratchet.language_models.engines.interface import (
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
)
from ratchet.service.api.schemas.responses import ResponseRequest
from ratchet.service.api.streaming import data_event, encode, response_id

Emit = Callable[..., bytes]


def response_request(request: ResponseRequest) -> GenerationRequest:
    """Create the engine's request."""
    effort = None if request.reasoning is None else request.reasoning.effort
    return GenerationRequest(
        model=request.model,
        messages=request.messages,
        seed=secrets.randbits(63),  # this API has no seed
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        max_tokens=request.max_output_tokens,
        template_variables={} if effort is None else {"reasoning_effort": effort},
        schema=request.json_schema_text,
    )


class ResponsesApiResponse:
    """Responses to one request, complete or streamed."""

    def __init__(self, request: ResponseRequest) -> None:
        self._item = response_id("msg_")
        self._head: dict[str, Any] = {
            "id": response_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "instructions": request.instructions,
            "metadata": request.metadata or {},
            "model": request.model,
            "parallel_tool_calls": True,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "tool_choice": request.tool_choice or "auto",
            "tools": [],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "max_output_tokens": request.max_output_tokens,
            "store": False,
        }

    def complete(self, result: GenerationResult) -> bytes:
        """Return the complete response."""
        return encode(self._response(result))

    async def events(
        self, news: AsyncIterator[tuple[int, GenerationChunk | GenerationResult]]
    ) -> AsyncIterator[bytes]:
        """Stream the response as events."""
        number = -1

        def emit(kind: str, **content: Any) -> bytes:  # noqa: ANN401 -- JSON
            nonlocal number
            number += 1
            return data_event({"type": kind, "sequence_number": number, **content}, kind)

        begun = False
        async for _, got in news:
            if not begun:
                begun = True
                for event in self._start_events(emit):
                    yield event
            if isinstance(got, GenerationChunk):
                position = self._position()
                yield emit("response.output_text.delta", **position, delta=got.text, logprobs=[])
                continue
            for event in self._end_events(emit, got):
                yield event

    def _start_events(self, emit: Emit) -> list[bytes]:
        empty = self._response(None)
        item = self._message("in_progress", [])
        return [
            emit("response.created", response=empty),
            emit("response.in_progress", response=empty),
            emit("response.output_item.added", output_index=0, item=item),
            emit("response.content_part.added", **self._position(), part=_part("")),
        ]

    def _end_events(self, emit: Emit, result: GenerationResult) -> list[bytes]:
        position, part = self._position(), _part(result.text)
        item = self._message(_status(result), [part])
        return [
            emit("response.output_text.done", **position, text=result.text, logprobs=[]),
            emit("response.content_part.done", **position, part=part),
            emit("response.output_item.done", output_index=0, item=item),
            emit(f"response.{_status(result)}", response=self._response(result)),
        ]

    def _position(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._item, "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": content}

    def _response(self, result: GenerationResult | None) -> dict[str, Any]:
        if result is None:
            empty: dict[str, Any] = {
                "status": "in_progress",
                "incomplete_details": None,
                "output": [],
            }
            return {**self._head, **empty, "usage": None}
        status = _status(result)
        return {
            **self._head,
            "status": status,
            "incomplete_details": None
            if status == "completed"
            else {"reason": "max_output_tokens"},
            "output": [self._message(status, [_part(result.text)])],
            "usage": _usage(result),
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _status(result: GenerationResult) -> str:
    return "completed" if result.finish_reason == "stop" else "incomplete"


def _usage(result: GenerationResult) -> dict[str, Any]:
    return {
        "input_tokens": result.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": result.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": result.prompt_tokens + result.completion_tokens,
    }
