"""Chat requests to engine requests, and results to OpenAI's responses.

Tool calls are parsed in these formats: ``<tool_call>{…}</tool_call>`` (Hermes, Qwen), and a reply
that consists of the JSON of one call or a list of calls (Llama, Mistral, and every reply with a
required call).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ratchet.language_models.engines.interface import (
    GeneratedToken,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    TokenChoice,
)
from ratchet.language_models.types import ToolCall
from ratchet.seeding import derive_seed
from ratchet.service.api.schemas.chat import ChatCompletionRequest, StoppingRequest
from ratchet.service.api.schemas.formats import FunctionTool
from ratchet.service.api.schemas.strict_json import closed
from ratchet.service.api.streaming import DONE, data_event, encode, response_id

MOST_IMPROBABLE = -9999.0
"""OpenAI's value for an extremely unlikely token."""


def seeds_of(request: StoppingRequest) -> list[int]:
    """Sample or derive a seed for each of the ``n`` completions."""
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    return [
        seed if index == 0 else derive_seed(seed, "completion", index)
        for index in range(request.n or 1)
    ]


def generation_requests(request: ChatCompletionRequest) -> list[GenerationRequest]:
    """Create the ``n`` requests, each with its own seed."""
    messages = tuple(message.to_chat_message() for message in request.messages)
    completion_limit = request.max_completion_tokens
    schema = None
    if request.required_tools:
        schema = call_schema(request.required_tools)
    elif request.response_format is not None:
        schema = request.response_format.json_schema_text
    return [
        GenerationRequest(
            model=request.model,
            messages=messages,
            seed=seed,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            repetition_penalty=request.repetition_penalty or 1.0,
            max_tokens=request.max_tokens if completion_limit is None else completion_limit,
            stop=request.stops,
            logprobs=bool(request.logprobs),
            top_logprobs=request.top_logprobs or 0,
            token_ids=bool(request.return_token_ids),
            template_variables=request.template_variables,
            schema=schema,
            schema_param="tools" if request.required_tools else "response_format",
            tools=tuple(tool.for_template() for tool in request.offered_tools),
        )
        for seed in seeds_of(request)
    ]


class ChatResponse:
    """Responses to one chat request, in OpenAI's format."""

    def __init__(self, request: ChatCompletionRequest) -> None:
        self._request = request
        options = request.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._head = {
            "id": response_id("chatcmpl-"),
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": fingerprint(request.model),
        }

    def complete(self, results: Sequence[GenerationResult]) -> bytes:
        """Return the complete response (``chat.completion``)."""
        choices = []
        for index, result in enumerate(results):
            message, reason = self._message(result)
            choices.append(
                {
                    "index": index,
                    "message": {"role": "assistant", "refusal": None, **message},
                    "logprobs": self._logprobs(result.tokens),
                    "finish_reason": reason,
                    **self._ids("token_ids", result.token_ids),
                }
            )
        content = {"object": "chat.completion", "choices": choices, "usage": usage(results)}
        read = self._ids("prompt_token_ids", results[0].prompt_ids)
        return encode({**self._head, **content, **read})

    async def events(
        self, news: AsyncIterator[tuple[int, GenerationChunk | GenerationResult]]
    ) -> AsyncIterator[bytes]:
        """Stream the response in chunks (``chat.completion.chunk``).

        With tools, a choice is sent when it is complete: only then is it known whether it is text
        or a call.
        """
        results: dict[int, GenerationResult] = {}
        begun: set[int] = set()
        whole_only = bool(self._request.offered_tools)
        async for index, got in news:
            if index not in begun:
                begun.add(index)
                yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
            if isinstance(got, GenerationChunk):
                if not whole_only:
                    yield self._chunk(index, {"content": got.text}, got.tokens)
                continue
            results[index] = got
            message, reason = self._message(got)
            if whole_only:
                calls = enumerate(message.get("tool_calls", ()))
                message["tool_calls"] = [{"index": at, **call} for at, call in calls]
                delta = {name: value for name, value in message.items() if value}
                yield self._chunk(index, delta, got.tokens)
            yield self._chunk(index, {}, None, reason)
        if self._with_usage:
            ordered = [results[index] for index in sorted(results)]
            yield data_event(self._chunk_of([], usage(ordered)))
        yield DONE

    def _message(self, result: GenerationResult) -> tuple[dict[str, Any], str]:
        """Return a completion's text or calls, and its finish reason."""
        text, calls = result.text, tuple[ToolCall, ...]()
        if self._request.offered_tools:
            text, calls = read_calls(result.text, self._request.offered_tools)
        if not calls:
            return {"content": text}, result.finish_reason
        content = {"content": text or None, "tool_calls": [call.to_dict() for call in calls]}
        return content, "tool_calls" if result.finish_reason == "stop" else "length"

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        tokens: Sequence[GeneratedToken] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        logprobs = None if tokens is None else self._logprobs(tokens)
        choice = {"index": index, "delta": delta, "logprobs": logprobs}
        return data_event(self._chunk_of([{**choice, "finish_reason": finish_reason}], None))

    def _chunk_of(
        self, choices: list[dict[str, Any]], used: dict[str, int] | None
    ) -> dict[str, Any]:
        more = {"usage": used} if self._with_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}

    def _ids(self, name: str, ids: Sequence[int]) -> dict[str, list[int]]:
        """Return token ids under vLLM's names, if requested."""
        return {name: list(ids)} if self._request.return_token_ids else {}

    def _logprobs(self, tokens: Sequence[GeneratedToken]) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        content = [
            {**_logprob(token), "top_logprobs": [_logprob(top) for top in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def usage(results: Sequence[GenerationResult], per_prompt: int | None = None) -> dict[str, int]:
    """Count tokens; the prompt of ``per_prompt`` completions (default: all) is counted once."""
    prompt = sum(result.prompt_tokens for result in results[:: per_prompt or len(results)])
    written = sum(result.completion_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def fingerprint(model: str) -> str:
    """Return OpenAI's ``system_fingerprint``, derived from the model's name."""
    return f"fp_{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def _logprob(token: GeneratedToken | TokenChoice) -> dict[str, Any]:
    content = list(token.token.encode("utf-8", "replace"))
    logprob = max(token.logprob, MOST_IMPROBABLE)
    return {"token": token.token, "bytes": content, "logprob": logprob}


_MARKED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def call_schema(tools: Sequence[FunctionTool]) -> str:
    """Return the schema of one call of any of these tools."""
    parameters = {tool.function.name: _moved(tool) for tool in tools}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name in parameters
    ]
    return json.dumps({"$defs": parameters, "anyOf": calls})


def read_calls(text: str, tools: Sequence[FunctionTool]) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a reply into text and calls; calls of unknown tools remain text."""
    names = {tool.function.name for tool in tools}
    marked = list(_MARKED.finditer(text))
    written = [match[1] for match in marked] or [text]
    calls = [call for piece in written for call in _calls(piece)]
    if not calls or any(name not in names for name, _ in calls):
        return text, ()
    remaining_text = text[: marked[0].start()].strip() if marked else ""
    return remaining_text, tuple(ToolCall(response_id("call_"), *call) for call in calls)


def _calls(text: str) -> list[tuple[str, str]]:
    """Return names and arguments; empty if the text is no call."""
    try:
        content = json.loads(text)
    except ValueError:
        return []
    calls = []
    for item in content if isinstance(content, list) else [content]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return []
        arguments = item.get("arguments", item.get("parameters"))
        if not isinstance(arguments, dict):
            return []
        calls.append((item["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls


def _moved(tool: FunctionTool) -> Any:  # noqa: ANN401 -- parsed JSON
    """Return a tool's parameters, with root references rewritten to their new location."""
    root = f"#/$defs/{tool.function.name}"

    def moved(value: Any) -> Any:  # noqa: ANN401 -- parsed JSON
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, dict):
            return value
        content = {name: moved(item) for name, item in value.items()}
        reference = content.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            content["$ref"] = root + reference[1:]
        return content

    return moved(closed(tool.function.parameters or {"type": "object", "properties": {}}))
