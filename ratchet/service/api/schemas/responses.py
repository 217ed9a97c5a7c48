"""Schemas of text responses, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from openai.types.responses import ResponseOutputMessage, ResponseUsage
from openai.types.responses.response import IncompleteDetails
from pydantic import BaseModel, Field, JsonValue

from ratchet.language_models.types import ChatMessage, Role
from ratchet.service.api.schemas.chat import SamplingRequest
from ratchet.service.api.schemas.formats import JsonObjectFormat, NamedSchema, TextFormat
from ratchet.service.api.schemas.messages import Name, PromptModel
from ratchet.service.api.schemas.unsupported import NoEffect

_SEND_ALL = "Responses are not stored: send all messages in 'input'."


class InputPart(PromptModel):
    """A part of an input item or of the model's output."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(PromptModel):
    """An input item: a message, also in the format of a response."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputPart], Field(min_length=1)]

    def to_chat_message(self) -> ChatMessage:
        """Return the message in the engine's format."""
        role: Role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return ChatMessage(role, self.content)
        return ChatMessage(role, "".join(part.text for part in self.content))


class SchemaFormat(NamedSchema):
    """JSON that fits a schema; enforced regardless of ``strict``."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, JsonValue], Field(alias="schema")]


class TextSettings(PromptModel):
    """Format of the text."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Annotated[JsonValue, NoEffect(("medium",))] = None


class ReasoningSettings(PromptModel):
    """Reasoning effort."""

    effort: Name | None = None


class ResponseRequest(SamplingRequest):
    """The body of ``POST /v1/responses``; never stored, regardless of ``store``."""

    input: str | Annotated[list[InputMessage], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    tools: Annotated[JsonValue, NoEffect(([],), "Use chat completions for tools.")] = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Annotated[JsonValue, NoEffect(("disabled",))] = None
    include: Annotated[JsonValue, NoEffect(([],))] = None
    background: Annotated[JsonValue, NoEffect((False,))] = None
    previous_response_id: Annotated[JsonValue, NoEffect((), _SEND_ALL)] = None
    conversation: Annotated[JsonValue, NoEffect((), _SEND_ALL)] = None
    top_logprobs: Annotated[JsonValue, NoEffect((0,), "Use chat completions.")] = None
    max_tool_calls: Annotated[JsonValue, NoEffect()] = None

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The chat, the instructions first."""
        first = [] if self.instructions is None else [ChatMessage("system", self.instructions)]
        if isinstance(self.input, str):
            return (*first, ChatMessage("user", self.input))
        return (*first, *(item.to_chat_message() for item in self.input))

    @property
    def json_schema_text(self) -> str | None:
        """The schema of the completion."""
        chosen = None if self.text is None else self.text.format
        return None if chosen is None else chosen.json_schema_text


class ResponseObject(BaseModel):
    """The response; OpenAI's type describes some 200 objects that no response here contains."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    metadata: dict[str, str] | None
    model: str
    output: list[ResponseOutputMessage]
    parallel_tool_calls: bool
    temperature: float
    tool_choice: Literal["none", "auto"]
    tools: list[None]
    top_p: float
    max_output_tokens: int | None
    store: Literal[False]
    usage: ResponseUsage | None
