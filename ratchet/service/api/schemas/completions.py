"""Schemas of text completions and embeddings, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Literal

from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse, Embedding
from openai.types.completion_choice import Logprobs
from pydantic import Field, JsonValue, model_validator

from ratchet.service.api.schemas.chat import StoppingRequest
from ratchet.service.api.schemas.messages import RequestModel
from ratchet.service.api.schemas.unsupported import NoEffect

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
MAX_PROMPTS = 2048
Prompt = (
    str
    | TokenIds
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
)


def prompts_of(prompt: Prompt) -> list[str | tuple[int, ...]]:
    """Return a list of prompts, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [tuple(item for item in prompt if isinstance(item, int))]
    return [
        item if isinstance(item, str) else tuple(item)
        for item in prompt
        if not isinstance(item, int)
    ]


class TextCompletionRequest(StoppingRequest):
    """The body of ``POST /v1/completions``."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Annotated[JsonValue, NoEffect(("",))] = None

    @model_validator(mode="after")
    def _check_combinations(self) -> TextCompletionRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream' to be true")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("'best_of' must be 'n': all completions are returned")
        if self.stream and self.echo:
            raise ValueError("'echo' is not supported with 'stream'")
        return self


class TextLogprobs(Logprobs):
    """Log-probabilities of a choice, token by token; the first of an echo has none."""

    token_logprobs: list[float | None]  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None]  # type: ignore[assignment]


class TextChoice(CompletionChoice):
    """One of the completions, in prompt order."""

    logprobs: TextLogprobs | None


class TextCompletion(Completion):
    """The response."""

    choices: list[TextChoice]  # type: ignore[assignment]


class EmbeddingsRequest(RequestModel):
    """The body of ``POST /v1/embeddings``."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[JsonValue, NoEffect((), "Vectors have the model's width.")] = None
    user: str | None = None


class EmbeddingObject(Embedding):
    """A vector: numbers, or the base64 of little-endian float32."""

    embedding: list[float] | str  # type: ignore[assignment]


class EmbeddingsObject(CreateEmbeddingResponse):
    """The response."""

    data: list[EmbeddingObject]  # type: ignore[assignment]
