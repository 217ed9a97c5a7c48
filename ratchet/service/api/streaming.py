"""Streamed responses: server-sent events and response ids."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi.responses import StreamingResponse

from ratchet.language_models.engines.interface import EngineError, RequestRefusedError
from ratchet.service.api.errors import ApiError, from_engine

DONE = b"data: [DONE]\n\n"


async def streamed(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Wait for the first event, then send it and all others.

    Failures before the first event are raised; later ones are sent as an event.
    """
    first = await anext(events)

    async def all_events() -> AsyncIterator[bytes]:
        yield first
        try:
            async for event in events:
                yield event
        except (ApiError, EngineError, RequestRefusedError) as error:
            failure = error if isinstance(error, ApiError) else from_engine(error)
            yield b"data: " + bytes(failure.to_response().body) + b"\n\n"

    return StreamingResponse(all_events(), media_type="text/event-stream")


def data_event(content: Mapping[str, Any], name: str | None = None) -> bytes:
    """Encode an event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + encode(content) + b"\n\n"


def encode(content: Mapping[str, Any]) -> bytes:
    """Encode JSON; characters that UTF-8 cannot encode become question marks."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


_BEGINNING = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


def response_id(kind: str) -> str:
    """Return a new id such as "chatcmpl-9f0c…", unique across processes and calls."""
    return f"{kind}{_BEGINNING}{next(_NUMBERS):08x}"
