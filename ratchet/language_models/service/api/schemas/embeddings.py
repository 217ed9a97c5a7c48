"""Embeddings as OpenAI's API describes them: what comes in and what goes out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from ratchet.language_models.service.api.schemas.completions import Prompt
from ratchet.language_models.service.api.schemas.messages import RequestModel


class EmbeddingsRequest(RequestModel):
    """The body of ``POST /v1/embeddings``."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


class EmbeddingObject(BaseModel):
    """A vector: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsObject(BaseModel):
    """The answer."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingObject]
    usage: EmbeddingUsage
