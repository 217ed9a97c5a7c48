"""Messages of a chat as OpenAI's API describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ratchet.language_models.types import ChatMessage, Role, ToolCall

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class RequestModel(BaseModel):
    """A request: no unknown field, no silent conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(RequestModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class GivenMessage(RequestModel):
    """A message of the prompt, or of a training example."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: Name | None = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message as the engine takes it."""
        role: Role = "user" if self.role == "user" else "system"
        return ChatMessage(role, _joined(self.content), self.name)


class GivenAssistantMessage(RequestModel):
    """What the model has said, also in the form in which the SDK gives it out."""

    role: Literal["assistant"]
    content: Content
    name: Name | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message as the engine takes it."""
        return ChatMessage("assistant", _joined(self.content), self.name)


class AskedPart(TextPart):
    """A part of a message's content, with whatever a client keeps beside it."""

    model_config = ConfigDict(extra="ignore")


AskedContent = str | Annotated[list[AskedPart], Field(min_length=1)]


class AskedModel(RequestModel):
    """A part of a chat that is only read: what a client keeps beside it does no harm."""

    model_config = ConfigDict(extra="ignore")


class AskedMessage(AskedModel):
    """What the model is told."""

    role: Literal["system", "developer", "user"]
    content: AskedContent
    name: Name | None = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message as the engine takes it."""
        role: Role = "user" if self.role == "user" else "system"
        return ChatMessage(role, _joined(self.content), self.name)


class CalledFunction(AskedModel):
    """What a call calls, with its arguments as JSON text."""

    name: Name
    arguments: str


class AskedToolCall(AskedModel):
    """A call that the model has made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def to_tool_call(self) -> ToolCall:
        """Return the call as the engine takes it."""
        return ToolCall(self.id, self.function.name, self.function.arguments)


class AskedAssistantMessage(AskedModel):
    """What the model has said or called."""

    role: Literal["assistant"]
    content: AskedContent | None = None
    name: Name | None = None
    tool_calls: list[AskedToolCall] | None = None

    def to_chat_message(self) -> ChatMessage:
        """Return the message as the engine takes it."""
        calls = tuple(call.to_tool_call() for call in self.tool_calls or ())
        return ChatMessage("assistant", _joined(self.content or ""), self.name, calls)


class AskedToolMessage(AskedModel):
    """What a call gave."""

    role: Literal["tool"]
    content: AskedContent
    tool_call_id: str

    def to_chat_message(self) -> ChatMessage:
        """Return the message as the engine takes it."""
        return ChatMessage("tool", _joined(self.content), tool_call_id=self.tool_call_id)


AnyMessage = Annotated[
    AskedMessage | AskedAssistantMessage | AskedToolMessage, Field(discriminator="role")
]


def is_none(value: Any) -> bool:  # noqa: ANN401 -- whatever a field holds
    """Whether a field of an answer is to be left out: OpenAI has no null in its place."""
    return value is None


def _joined(content: str | list[TextPart] | list[AskedPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
