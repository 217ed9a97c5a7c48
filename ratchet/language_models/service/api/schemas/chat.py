"""Chat completions as OpenAI's API describes them: what comes in and what goes out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

from ratchet.language_models.types import ChatMessage, Role

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
MAX_CHOICES = 128
_TEMPLATE_VARIABLES = frozenset({"messages", "add_generation_prompt", "chat_template", "tokenize"})


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


AnyMessage = Annotated[GivenMessage | GivenAssistantMessage, Field(discriminator="role")]


class StreamOptions(RequestModel):
    """What a streamed answer holds besides its pieces."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextFormat(RequestModel):
    """The only format there is."""

    type: Literal["text"]


class ChatCompletionRequest(RequestModel):
    """The body of ``POST /v1/chat/completions``; what a small model cannot do is unknown here."""

    model: str
    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=4096)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: TextFormat | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    reasoning_effort: Name | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _leave_the_chat_alone(
        cls, given: dict[str, JsonValue] | None
    ) -> dict[str, JsonValue] | None:
        taken = sorted(_TEMPLATE_VARIABLES.intersection(given or ()))
        if taken:
            raise ValueError(f"{', '.join(taken)} is the service's to set")
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' needs 'logprobs' to be true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream' to be true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("give 'max_completion_tokens' or 'max_tokens', not both")
        return self

    @property
    def template_variables(self) -> dict[str, JsonValue]:
        """What the model's chat template is given besides the messages."""
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return variables

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a completion."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def _joined(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class TopLogprob(BaseModel):
    """A token that could have stood there."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(TopLogprob):
    """The token that stands there."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    """Log-probabilities of a choice, token by token."""

    content: list[TokenLogprob] | None
    refusal: None = None


class AnswerMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class Choice(BaseModel):
    """One of the ``n`` answers."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length"]


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(BaseModel):
    """The answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str
