"""Ratchet's own service: OpenAI's API, with idempotency keys, and lists that never lag."""

from __future__ import annotations

from typing import ClassVar

from ratchet.language_models.tuning.openai_api import OpenAiBackend
from ratchet.language_models.tuning.registry import register_tuning_backend


@register_tuning_backend("ratchet")
class RatchetBackend(OpenAiBackend):
    """The embedded service, or ``ratchet llm serve`` anywhere."""

    hyper_parameters: ClassVar[frozenset[str]] = OpenAiBackend.hyper_parameters | {"lora_rank"}
    lists_at_once: ClassVar[bool] = True

    @property
    def is_free(self) -> bool:
        """Whether jobs cost nothing: they do on one's own machine."""
        return True
