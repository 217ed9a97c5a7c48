"""The request for chat completions, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator

from ratchet.service.api.schemas.formats import (
    FunctionTool,
    ResponseFormat,
    ToolChoice,
)
from ratchet.service.api.schemas.messages import (
    AnyMessage,
    Name,
    RequestModel,
)
from ratchet.service.api.schemas.unsupported import NoEffect

Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
MAX_CHOICES = 128
_TEMPLATE_VARIABLES = frozenset({"messages", "add_generation_prompt", "chat_template", "tokenize"})


class StreamOptions(RequestModel):
    """Additional content of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingRequest(RequestModel):
    """Fields of all requests for text, including clients' defaults without effect."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class StoppingRequest(SamplingRequest):
    """Fields of both kinds of completions."""

    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    frequency_penalty: Annotated[JsonValue, NoEffect((0,))] = None
    presence_penalty: Annotated[JsonValue, NoEffect((0,))] = None
    logit_bias: Annotated[JsonValue, NoEffect(({},))] = None
    top_k: Annotated[JsonValue, NoEffect((-1, 0), "Use 'top_p', or omit it.")] = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a completion."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatCompletionRequest(StoppingRequest):
    """The body of ``POST /v1/chat/completions``, without features that are not supported."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[JsonValue, NoEffect(([],), "Use 'tools'.")] = None
    modalities: Annotated[JsonValue, NoEffect((["text"],))] = None
    audio: Annotated[JsonValue, NoEffect()] = None
    prediction: Annotated[JsonValue, NoEffect()] = None
    verbosity: Annotated[JsonValue, NoEffect(("medium",))] = None
    web_search_options: Annotated[JsonValue, NoEffect()] = None
    reasoning_effort: Name | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _check_template_variables(
        cls, variables: dict[str, JsonValue] | None
    ) -> dict[str, JsonValue] | None:
        reserved_names = sorted(_TEMPLATE_VARIABLES.intersection(variables or ()))
        if reserved_names:
            raise ValueError(f"{', '.join(reserved_names)} is set by the service")
        return variables

    @model_validator(mode="after")
    def _check_combinations(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' needs 'logprobs' to be true")
        if self.return_token_ids and self.stream:
            raise ValueError("'return_token_ids' needs 'stream' to be false")
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream' to be true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("give 'max_completion_tokens' or 'max_tokens', not both")
        forced = self.tool_choice == "required" or isinstance(self.tool_choice, ToolChoice)
        if forced and not self.required_tools:
            raise ValueError("'tool_choice' names a tool that is not in 'tools'")
        return self

    @property
    def template_variables(self) -> dict[str, JsonValue]:
        """Variables of the model's chat template, in addition to the messages."""
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return variables

    @property
    def offered_tools(self) -> list[FunctionTool]:
        """The tools that the completion may call."""
        return [] if self.tool_choice == "none" else list(self.tools or ())

    @property
    def required_tools(self) -> list[FunctionTool]:
        """Required tools, any one of which must be called; empty if the model may choose."""
        if self.tool_choice == "required":
            return self.offered_tools
        if isinstance(self.tool_choice, ToolChoice):
            chosen = self.tool_choice.function.name
            return [tool for tool in self.offered_tools if tool.function.name == chosen]
        return []
