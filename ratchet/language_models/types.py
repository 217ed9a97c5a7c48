"""Chat requests, messages and completions, as plain values.

The lowest layer of the language models: imports no other module of the package, nor openai or
torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ratchet.rollouts.tokens import ReplyTokens

if TYPE_CHECKING:
    from pydantic import JsonValue

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

_TOKENS_AROUND = 8
"""Tokens of a message in addition to its text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call by a model; ``arguments`` are JSON as the model wrote it."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """Return the call in the services' format."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat; ``name`` distinguishes speakers of one role.

    ``tool_calls`` are for assistants; a tool's message refers to its call by ``tool_call_id``.
    """

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the message in the services' format, without an empty ``name``."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    def for_template(self) -> dict[str, Any]:
        """Return the message for chat templates: a call's arguments are an object."""
        message = self.to_dict()
        for call in message.get("tool_calls", ()):
            with contextlib.suppress(ValueError):  # a client's own text, shown unchanged
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return message

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ChatMessage:
        """Build the message from plain data; the inverse of :meth:`to_dict`."""
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in data.get("tool_calls", ())
        )
        called = data.get("tool_call_id")
        return cls(data["role"], data["content"], data.get("name"), calls, called)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """All inputs of a completion, except the service.

    ``None``: the service's default. ``max_tokens`` limits only the completion.
    ``chat_template_kwargs`` are passed to the model's chat template; ``extra_body`` contains
    further fields of a service. ``logprobs`` and ``return_token_ids`` request more about tokens
    than their text.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    chat_template_kwargs: Mapping[str, JsonValue] = field(default_factory=dict)
    extra_body: Mapping[str, JsonValue] = field(default_factory=dict)
    repetition_penalty: float | None = None
    logprobs: bool = False
    return_token_ids: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain data, without values left to the service."""
        data: dict[str, Any] = {
            "model": self.model,
            "messages": [message.to_dict() for message in self.messages],
        }
        names = ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort")
        for name in (*names, "repetition_penalty"):
            value = getattr(self, name)
            if value is not None:
                data[name] = value
        if self.stop:
            data["stop"] = list(self.stop)
        for name in ("logprobs", "return_token_ids"):
            if getattr(self, name):
                data[name] = True
        for name in ("chat_template_kwargs", "extra_body"):
            if getattr(self, name):
                data[name] = dict(getattr(self, name))
        return data

    def to_body(self) -> dict[str, Any]:
        """Return the request body: :meth:`to_dict`, with the fields of ``extra_body``."""
        body = self.to_dict()
        body.update(body.pop("extra_body", {}))
        return body

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ChatRequest:
        """Build the request from plain data; the inverse of :meth:`to_dict`."""
        values = dict(data)
        values["messages"] = tuple(ChatMessage.from_dict(m) for m in values["messages"])
        values["stop"] = tuple(values.get("stop", ()))
        return cls(**values)

    @property
    def most_tokens(self) -> tuple[int, int]:
        """Return the maximal total tokens: no token is shorter than a byte of text."""
        size = sum(len(message.content.encode()) for message in self.messages)
        return size + _TOKENS_AROUND * len(self.messages), self.max_tokens or 0

    def digest(self) -> str:
        """Return the SHA-256 of the request's canonical JSON, 64 hexadecimal digits."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of a chat model.

    ``text`` is the answer, ``thinking`` the reasoning before it; a reply truncated while reasoning
    has no text. ``finish_reason`` is ``"stop"`` or ``"length"``: all others raise errors earlier.
    ``model`` is the service's name of the model. ``tokens`` are those of the full completion, if
    requested and reported.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    model: str
    thinking: str = ""
    tokens: ReplyTokens | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the completion as plain data, without empty reasoning or tokens."""
        thinking = {"thinking": self.thinking} if self.thinking else {}
        tokens = {} if self.tokens is None else {"tokens": self.tokens.to_dict()}
        return {
            **thinking,
            **tokens,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "model": self.model,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Completion:
        """Build the completion from plain data; the inverse of :meth:`to_dict`."""
        values = dict(data)
        if "tokens" in values:
            values["tokens"] = ReplyTokens.from_dict(values["tokens"])
        return cls(**values)
