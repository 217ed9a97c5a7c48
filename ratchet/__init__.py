"""What is played and what is known: the foundation of Ratchet.

Names are imported on first use, so that ``import ratchet`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings

__version__ = "0.1.0"
__all__ = ["ExperimentSettings", "HyperParameters", "__version__"]

_HOMES = {
    "HyperParameters": "ratchet.parameters.hyper_parameters",
    "ExperimentSettings": "ratchet.parameters.settings",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
    """Import a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ratchet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
