"""Responses as OpenAI's API describes them, as far as they are text."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

from ratchet.language_models.service.api.schemas.chat import SamplingRequest
from ratchet.language_models.service.api.schemas.closing import closed
from ratchet.language_models.service.api.schemas.formats import (
    FormatName,
    JsonObjectFormat,
    TextFormat,
)
from ratchet.language_models.service.api.schemas.messages import AskedModel, Name
from ratchet.language_models.types import ChatMessage, Role


class InputPart(AskedModel):
    """A part of an item: what was given, or what the model has said."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(AskedModel):
    """An item of the input: a message, also in the form in which an answer holds it."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputPart], Field(min_length=1)]

    def to_chat_message(self) -> ChatMessage:
        """Return the message as the engine takes it."""
        role: Role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return ChatMessage(role, self.content)
        return ChatMessage(role, "".join(part.text for part in self.content))


class SchemaFormat(AskedModel):
    """JSON that fits a schema; it holds whether ``strict`` is said or not."""

    type: Literal["json_schema"]
    name: FormatName
    description: str | None = None
    schema_: Annotated[dict[str, JsonValue], Field(alias="schema")]
    strict: bool | None = None

    @property
    def json_schema_text(self) -> str | None:
        """The schema that the answer has to fit."""
        return json.dumps(closed(self.schema_))


class TextSettings(AskedModel):
    """What the text may look like."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None


class ReasoningSettings(AskedModel):
    """How much a model that thinks should think."""

    effort: Name | None = None


class ResponseRequest(SamplingRequest):
    """The body of ``POST /v1/responses``; nothing is stored, whatever ``store`` says."""

    input: str | Annotated[list[InputMessage], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    tools: Annotated[list[None], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[None], Field(max_length=0)] | None = None
    background: Literal[False] | None = None

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The chat, the instructions first."""
        first = [] if self.instructions is None else [ChatMessage("system", self.instructions)]
        if isinstance(self.input, str):
            return (*first, ChatMessage("user", self.input))
        return (*first, *(item.to_chat_message() for item in self.input))

    @property
    def json_schema_text(self) -> str | None:
        """The schema that the answer has to fit."""
        chosen = None if self.text is None else self.text.format
        return None if chosen is None else chosen.json_schema_text


class OutputText(BaseModel):
    """What the model says."""

    type: Literal["output_text"]
    text: str
    annotations: list[None]


class OutputMessage(BaseModel):
    """The one item of an answer."""

    id: str
    type: Literal["message"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class IncompleteDetails(BaseModel):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class TokenDetails(BaseModel):
    """What of the tokens read was known already: nothing is kept."""

    cached_tokens: int


class OutputTokenDetails(BaseModel):
    """What of the tokens written was thought: not told apart."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens read and written."""

    input_tokens: int
    input_tokens_details: TokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class ResponseObject(BaseModel):
    """The answer."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    metadata: dict[str, str] | None
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool
    temperature: float
    tool_choice: Literal["none", "auto"]
    tools: list[None]
    top_p: float
    max_output_tokens: int | None
    store: Literal[False]
    usage: ResponseUsage | None
