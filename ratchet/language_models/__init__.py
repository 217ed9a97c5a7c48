"""Chat models: asking them, paying for them, training them, and a service of our own.

Names are imported on first use: only the modules that speak to a service import openai.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.language_models.chat import ChatClient
    from ratchet.language_models.endpoints import Endpoint
    from ratchet.language_models.journal import CallJournal
    from ratchet.language_models.types import ChatMessage, ChatRequest, Completion

__all__ = [
    "CallJournal",
    "ChatClient",
    "ChatMessage",
    "ChatRequest",
    "Completion",
    "Endpoint",
]

_HOMES = {
    "CallJournal": "ratchet.language_models.journal",
    "ChatClient": "ratchet.language_models.chat",
    "ChatMessage": "ratchet.language_models.types",
    "ChatRequest": "ratchet.language_models.types",
    "Completion": "ratchet.language_models.types",
    "Endpoint": "ratchet.language_models.endpoints",
}


__getattr__ = lazy_names(__name__, _HOMES)
