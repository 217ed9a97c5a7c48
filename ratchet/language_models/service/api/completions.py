"""From a chat request to what the engine takes, and from its results to OpenAI's answer."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.language_models.service.api.schemas.chat import ChatCompletionRequest
from ratchet.language_models.service.engine.interface import (
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
)
from ratchet.seeding import derive_seed

_PIECE = re.compile(r"\s*\S+|\s+$")


def generation_requests(request: ChatCompletionRequest) -> list[GenerationRequest]:
    """Make the ``n`` requests, each with a seed of its own."""
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    messages = tuple(message.to_chat_message() for message in request.messages)
    most = request.max_completion_tokens
    return [
        GenerationRequest(
            model=request.model,
            messages=messages,
            seed=seed if index == 0 else derive_seed(seed, "completion", index),
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            repetition_penalty=request.repetition_penalty or 1.0,
            max_tokens=request.max_tokens if most is None else most,
            stop=request.stops,
            logprobs=bool(request.logprobs),
            top_logprobs=request.top_logprobs or 0,
            template_variables=request.template_variables,
        )
        for index in range(request.n or 1)
    ]


class Answer:
    """The results of one chat request, in OpenAI's shapes."""

    def __init__(self, request: ChatCompletionRequest, results: Sequence[GenerationResult]) -> None:
        self._request = request
        self._results = results
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": _fingerprint(request.model),
        }

    def to_json(self) -> bytes:
        """Return the whole answer (``chat.completion``)."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": result.text, "refusal": None},
                "logprobs": self._logprobs(result.tokens),
                "finish_reason": result.finish_reason,
            }
            for index, result in enumerate(self._results)
        ]
        content = {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage(),
        }
        return _encode(content)

    def to_events(self) -> Iterator[bytes]:
        """Return the answer piece by piece (``chat.completion.chunk``, server-sent events)."""
        options = self._request.stream_options
        with_usage = options is not None and bool(options.include_usage)
        empty: dict[str, Any] = {"usage": None} if with_usage else {}
        for index, result in enumerate(self._results):
            start = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk([_delta(index, start)], empty)
            for text, tokens in self._pieces(result):
                choice = _delta(index, {"content": text}, self._logprobs(tokens))
                yield self._chunk([choice], empty)
            yield self._chunk([_delta(index, {}, None, result.finish_reason)], empty)
        if with_usage:
            yield self._chunk([], {"usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _pieces(self, result: GenerationResult) -> Iterator[tuple[str, tuple[GeneratedToken, ...]]]:
        """Part a text into words, with the log-probabilities of all its tokens at the first."""
        tokens = result.tokens
        for text in _PIECE.findall(result.text):
            yield text, tokens
            tokens = ()
        if tokens:
            yield "", tokens

    def _chunk(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        content = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + _encode(content) + b"\n\n"

    def _usage(self) -> dict[str, int]:
        """Count the prompt once, however many answers there are."""
        prompt = self._results[0].prompt_tokens
        written = sum(result.completion_tokens for result in self._results)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        content = [
            {
                **_logprob(token.token, token.logprob),
                "top_logprobs": [_logprob(top.token, top.logprob) for top in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def _delta(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _logprob(token: str, logprob: float) -> dict[str, Any]:
    """Show a token; like OpenAI, -9999.0 stands for what is next to impossible."""
    content = list(token.encode("utf-8", "replace"))
    return {"token": token, "bytes": content, "logprob": max(logprob, -9999.0)}


def _encode(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _fingerprint(model: str) -> str:
    return f"fp_{hashlib.sha256(model.encode()).hexdigest()[:10]}"
