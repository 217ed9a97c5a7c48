"""Foundation of Ratchet: agents, scenarios, protocols, parameters, store and tracking.

Names are imported on first use, so that ``import ratchet`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters as HyperParameters
    from ratchet.parameters.settings import ExperimentSettings as ExperimentSettings

__version__ = "0.1.0"

export_lazily(__name__)
