"""Chat models: clients, costs, and fine-tuning.

Names are imported on first use: only the modules that call a service import openai.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.language_models.chat import ChatClient as ChatClient
    from ratchet.language_models.endpoints import Endpoint as Endpoint
    from ratchet.language_models.estimates import ExperimentEstimate as ExperimentEstimate
    from ratchet.language_models.estimates import StageEstimate as StageEstimate
    from ratchet.language_models.estimates import estimate_experiment as estimate_experiment
    from ratchet.language_models.fine_tune_jobs import FineTuneIntent as FineTuneIntent
    from ratchet.language_models.fine_tune_jobs import FineTuneJob as FineTuneJob
    from ratchet.language_models.fine_tuning import FineTuneClient as FineTuneClient
    from ratchet.language_models.fine_tuning_backends.base import Deployment as Deployment
    from ratchet.language_models.fine_tuning_backends.base import (
        DeploymentIntent as DeploymentIntent,
    )
    from ratchet.language_models.fine_tuning_backends.base import (
        FineTuningBackend as FineTuningBackend,
    )
    from ratchet.language_models.fine_tuning_backends.registry import (
        register_tuning_backend as register_tuning_backend,
    )
    from ratchet.language_models.journal import CallJournal as CallJournal
    from ratchet.language_models.pricing import Budget as Budget
    from ratchet.language_models.pricing import ModelPrice as ModelPrice
    from ratchet.language_models.pricing import PriceTable as PriceTable
    from ratchet.language_models.rate_limits import RateLimiter as RateLimiter
    from ratchet.language_models.retrying import RetryPolicy as RetryPolicy
    from ratchet.language_models.types import ChatMessage as ChatMessage
    from ratchet.language_models.types import ChatRequest as ChatRequest
    from ratchet.language_models.types import Completion as Completion
    from ratchet.language_models.usage import UsageMeter as UsageMeter
    from ratchet.language_models.usage import UsageRow as UsageRow

export_lazily(__name__)
