"""What is played and what is known: the foundation of Ratchet.

Names are imported on first use, so that ``import ratchet`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings

__version__ = "0.1.0"
__all__ = ["ExperimentSettings", "HyperParameters", "__version__"]

_HOMES = {
    "HyperParameters": "ratchet.parameters.hyper_parameters",
    "ExperimentSettings": "ratchet.parameters.settings",
}


__getattr__ = lazy_names(__name__, _HOMES)
