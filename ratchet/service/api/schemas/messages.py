"""Schemas of chat messages, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from ratchet.language_models.types import ChatMessage, Role, ToolCall
from ratchet.service.api.schemas.unsupported import (
    NO_TOOLS,
    TOOL_CALLS,
    UNSUPPORTED,
)

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class RequestModel(BaseModel):
    """A request: no unknown fields, no implicit conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(RequestModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class MessageBody(RequestModel):
    """A message of the prompt, or of a training example."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: Name | None = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message in the engine's format."""
        role: Role = "user" if self.role == "user" else "system"
        return ChatMessage(role, _joined(self.content), self.name)


class AssistantMessageBody(RequestModel):
    """A message by the model, also in the format that the SDK returns."""

    role: Literal["assistant"]
    content: Content
    name: Name | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: Annotated[JsonValue, NO_TOOLS] = None
    tool_calls: Annotated[JsonValue, NO_TOOLS] = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message in the engine's format."""
        return ChatMessage("assistant", _joined(self.content), self.name)


class ToolMessageBody(BaseModel):
    """The result of a call, which no training example may contain."""

    role: Literal["tool", "function"]

    @model_validator(mode="after")
    def _refuse(self) -> ToolMessageBody:
        raise PydanticCustomError(UNSUPPORTED, "{advice}", {"advice": TOOL_CALLS})


class PromptContentPart(TextPart):
    """A part of a message's content, with any further client fields."""

    model_config = ConfigDict(extra="ignore")


AskedContent = str | Annotated[list[PromptContentPart], Field(min_length=1)]


class PromptModel(RequestModel):
    """A part of a prompt; further client fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class PromptMessage(MessageBody):
    """A message to the model; further client fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    content: AskedContent  # type: ignore[assignment]


class CalledFunction(PromptModel):
    """A called function, with its arguments as JSON text."""

    name: Name
    arguments: str


class PromptToolCall(PromptModel):
    """A call by the model."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def to_tool_call(self) -> ToolCall:
        """Return the call in the engine's format."""
        return ToolCall(self.id, self.function.name, self.function.arguments)


class PromptAssistantMessage(PromptModel):
    """A message or call by the model."""

    role: Literal["assistant"]
    content: AskedContent | None = None
    name: Name | None = None
    tool_calls: list[PromptToolCall] | None = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message in the engine's format."""
        calls = tuple(call.to_tool_call() for call in self.tool_calls or ())
        return ChatMessage("assistant", _joined(self.content or ""), self.name, calls)


class PromptToolMessage(PromptModel):
    """The result of a call."""

    role: Literal["tool"]
    content: AskedContent
    tool_call_id: str

    def to_chat_message(self) -> ChatMessage:
        """Return the message in the engine's format."""
        return ChatMessage("tool", _joined(self.content), tool_call_id=self.tool_call_id)


AnyMessage = Annotated[
    PromptMessage | PromptAssistantMessage | PromptToolMessage, Field(discriminator="role")
]


def _joined(content: str | list[TextPart] | list[PromptContentPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
