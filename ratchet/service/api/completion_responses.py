"""Text completions in OpenAI's format; with ``echo``, prompts are scored too."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ratchet.language_models.engines.interface import (
    GeneratedToken,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    PromptToken,
)
from ratchet.service.api.chat_responses import (
    MOST_IMPROBABLE,
    fingerprint,
    seeds_of,
    usage,
)
from ratchet.service.api.schemas.completions import (
    TextCompletionRequest,
    prompts_of,
)
from ratchet.service.api.streaming import DONE, data_event, encode, response_id

_MAX_TOKENS = 16  # OpenAI's default


def text_requests(request: TextCompletionRequest) -> list[GenerationRequest]:
    """Create ``n`` requests for each prompt."""
    return [
        GenerationRequest(
            model=request.model,
            messages=(),
            prompt=prompt,
            seed=seed,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            repetition_penalty=request.repetition_penalty or 1.0,
            max_tokens=_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
            stop=request.stops,
            logprobs=request.logprobs is not None,
            top_logprobs=request.logprobs or 0,
            echo=bool(request.echo),
        )
        for prompt in prompts_of(request.prompt)
        for seed in seeds_of(request)
    ]


class CompletionResponse:
    """Responses to one text completion request."""

    def __init__(self, request: TextCompletionRequest) -> None:
        self._request = request
        options = request.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._head = {
            "id": response_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": fingerprint(request.model),
        }

    def complete(self, results: Sequence[GenerationResult]) -> bytes:
        """Return the complete response."""
        choices = [
            self._choice(
                index,
                "".join(token.token for token in result.prompt) + result.text,
                (*result.prompt, *result.tokens),
                result.finish_reason,
            )
            for index, result in enumerate(results)
        ]
        return encode({**self._head, "choices": choices, "usage": self._usage(results)})

    async def events(
        self, news: AsyncIterator[tuple[int, GenerationChunk | GenerationResult]]
    ) -> AsyncIterator[bytes]:
        """Stream the response in chunks."""
        results: dict[int, GenerationResult] = {}
        characters: dict[int, int] = {}
        more: dict[str, Any] = {"usage": None} if self._with_usage else {}
        async for index, got in news:
            if isinstance(got, GenerationChunk):
                at = characters.get(index, 0)
                characters[index] = at + len(got.text)
                choice = self._choice(index, got.text, got.tokens, None, at)
            else:
                results[index] = got
                choice = self._choice(index, "", (), got.finish_reason)
            yield data_event({**self._head, "choices": [choice], **more})
        if self._with_usage:
            used = self._usage([results[index] for index in sorted(results)])
            yield data_event({**self._head, "choices": [], "usage": used})
        yield DONE

    def _usage(self, results: Sequence[GenerationResult]) -> dict[str, int]:
        return usage(results, self._request.n or 1)

    def _choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[PromptToken | GeneratedToken],
        reason: str | None,
        at: int = 0,
    ) -> dict[str, Any]:
        logprobs = None if self._request.logprobs is None else _logprobs(tokens, at)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(tokens: Sequence[PromptToken | GeneratedToken], at: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(at)
        at += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_bounded(token.logprob) for token in tokens],
        "top_logprobs": [
            None
            if token.logprob is None
            else {top.token: _bounded(top.logprob) for top in token.top}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _bounded(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, MOST_IMPROBABLE)
