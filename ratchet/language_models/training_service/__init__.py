"""Services that hold a model and train it verb by verb; :func:`connect` opens a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.language_models.local.rollout_engine import Completion, SampleRequest
    from ratchet.language_models.training_service.client import connect
    from ratchet.language_models.training_service.interface import (
        ForwardBackward,
        OptimizerSettings,
        TrainingExample,
        TrainingService,
    )
    from ratchet.language_models.training_service.tinker_client import connect_tinker

__all__ = [
    "Completion",
    "ForwardBackward",
    "OptimizerSettings",
    "SampleRequest",
    "TrainingExample",
    "TrainingService",
    "connect",
    "connect_tinker",
]

_INTERFACE = "ratchet.language_models.training_service.interface"
_HOMES = {
    **{name: _INTERFACE for name in __all__},
    "Completion": "ratchet.language_models.local.rollout_engine",
    "SampleRequest": "ratchet.language_models.local.rollout_engine",
    "connect": "ratchet.language_models.training_service.client",
    "connect_tinker": "ratchet.language_models.training_service.tinker_client",
}

__getattr__ = lazy_names(__name__, _HOMES)
