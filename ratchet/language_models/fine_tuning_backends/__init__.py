"""Fine-tuning services: one class per service's API."""

from __future__ import annotations

BUILT_IN = {
    "azure": "ratchet.language_models.fine_tuning_backends.azure",
    "fireworks": "ratchet.language_models.fine_tuning_backends.fireworks",
    "openai": "ratchet.language_models.fine_tuning_backends.openai_api",
    "ratchet": "ratchet.language_models.fine_tuning_backends.openai_api",
    "together": "ratchet.language_models.fine_tuning_backends.together",
    "vllm": "ratchet.language_models.fine_tuning_backends.vllm",
}
"""Name → the module that registers it."""
