"""Where models are fine-tuned: each service's words for it, behind one class a service."""

from __future__ import annotations

BUILT_IN = {
    "azure": "ratchet.language_models.tuning.azure",
    "fireworks": "ratchet.language_models.tuning.fireworks",
    "openai": "ratchet.language_models.tuning.openai_api",
    "ratchet": "ratchet.language_models.tuning.embedded",
    "together": "ratchet.language_models.tuning.together",
    "vllm": "ratchet.language_models.tuning.vllm",
}
"""Name → the module that registers it."""
