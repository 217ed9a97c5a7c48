"""Chat models: asking them, paying for them, training them, and a service of our own.

Names are imported on first use: only the modules that speak to a service import openai.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.language_models.chat import ChatClient
    from ratchet.language_models.endpoints import Endpoint
    from ratchet.language_models.estimates import (
        ExperimentEstimate,
        StageEstimate,
        estimate_experiment,
    )
    from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob
    from ratchet.language_models.fine_tuning import FineTuneClient
    from ratchet.language_models.journal import CallJournal
    from ratchet.language_models.pricing import Budget, ModelPrice, PriceTable
    from ratchet.language_models.rate_limits import RateLimiter
    from ratchet.language_models.retrying import RetryPolicy
    from ratchet.language_models.tuning.base import Deployment, DeploymentIntent, TuningBackend
    from ratchet.language_models.tuning.registry import register_tuning_backend
    from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
    from ratchet.language_models.usage import UsageMeter, UsageRow

__all__ = [
    "Budget",
    "CallJournal",
    "ChatClient",
    "ChatMessage",
    "ChatRequest",
    "Completion",
    "Deployment",
    "DeploymentIntent",
    "Endpoint",
    "ExperimentEstimate",
    "FineTuneClient",
    "FineTuneIntent",
    "FineTuneJob",
    "ModelPrice",
    "PriceTable",
    "RateLimiter",
    "RetryPolicy",
    "StageEstimate",
    "TuningBackend",
    "UsageMeter",
    "UsageRow",
    "estimate_experiment",
    "register_tuning_backend",
]

_HOMES = {
    "Budget": "ratchet.language_models.pricing",
    "CallJournal": "ratchet.language_models.journal",
    "ChatClient": "ratchet.language_models.chat",
    "ChatMessage": "ratchet.language_models.types",
    "ChatRequest": "ratchet.language_models.types",
    "Completion": "ratchet.language_models.types",
    "Deployment": "ratchet.language_models.tuning.base",
    "DeploymentIntent": "ratchet.language_models.tuning.base",
    "Endpoint": "ratchet.language_models.endpoints",
    "ExperimentEstimate": "ratchet.language_models.estimates",
    "FineTuneClient": "ratchet.language_models.fine_tuning",
    "FineTuneIntent": "ratchet.language_models.fine_tune_jobs",
    "FineTuneJob": "ratchet.language_models.fine_tune_jobs",
    "ModelPrice": "ratchet.language_models.pricing",
    "PriceTable": "ratchet.language_models.pricing",
    "RateLimiter": "ratchet.language_models.rate_limits",
    "RetryPolicy": "ratchet.language_models.retrying",
    "StageEstimate": "ratchet.language_models.estimates",
    "TuningBackend": "ratchet.language_models.tuning.base",
    "UsageMeter": "ratchet.language_models.usage",
    "UsageRow": "ratchet.language_models.usage",
    "estimate_experiment": "ratchet.language_models.estimates",
    "register_tuning_backend": "ratchet.language_models.tuning.registry",
}


__getattr__ = lazy_names(__name__, _HOMES)
