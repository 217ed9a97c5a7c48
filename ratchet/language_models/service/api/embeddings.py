"""From a request for embeddings to what the engine takes, and back."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from ratchet.language_models.service.api.schemas.completions import prompts_of
from ratchet.language_models.service.api.schemas.embeddings import EmbeddingsRequest
from ratchet.language_models.service.api.streaming import encode
from ratchet.language_models.service.engine.interface import EmbeddingRequest, EmbeddingResult


def embedding_requests(request: EmbeddingsRequest) -> list[EmbeddingRequest]:
    """Make a request for each input."""
    return [EmbeddingRequest(request.model, prompt) for prompt in prompts_of(request.input)]


def to_embeddings(request: EmbeddingsRequest, results: Sequence[EmbeddingResult]) -> bytes:
    """Write the answer."""
    used = sum(result.prompt_tokens for result in results)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(result.vector)
            if request.encoding_format == "base64"
            else list(result.vector),
        }
        for index, result in enumerate(results)
    ]
    usage = {"prompt_tokens": used, "total_tokens": used}
    return encode({"object": "list", "model": request.model, "data": data, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
