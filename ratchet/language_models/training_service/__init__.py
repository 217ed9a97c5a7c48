"""Services that train a model operation by operation; :func:`connect` opens a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import Completion as Completion
    from ratchet.language_models.engines.rollouts import SampleRequest as SampleRequest
    from ratchet.language_models.training_service.client import connect as connect
    from ratchet.language_models.training_service.interface import (
        ForwardBackward as ForwardBackward,
    )
    from ratchet.language_models.training_service.interface import (
        OptimizerSettings as OptimizerSettings,
    )
    from ratchet.language_models.training_service.interface import (
        TrainingExample as TrainingExample,
    )
    from ratchet.language_models.training_service.interface import (
        TrainingService as TrainingService,
    )
    from ratchet.language_models.training_service.tinker_client import (
        connect_tinker as connect_tinker,
    )


export_lazily(__name__)
