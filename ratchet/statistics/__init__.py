"""How sure we are of a number: estimates with intervals, for reports, tracking and tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.statistics.bootstrap import bootstrap_interval, paired_difference
    from ratchet.statistics.estimate import Estimate
    from ratchet.statistics.intervals import (
        clustered_proportion,
        difference_of_proportions,
        wilson_interval,
    )
    from ratchet.statistics.results import accuracy, accuracy_by, accuracy_difference

__all__ = [
    "Estimate",
    "accuracy",
    "accuracy_by",
    "accuracy_difference",
    "bootstrap_interval",
    "clustered_proportion",
    "difference_of_proportions",
    "paired_difference",
    "wilson_interval",
]

_HOMES = {
    "Estimate": "ratchet.statistics.estimate",
    "accuracy": "ratchet.statistics.results",
    "accuracy_by": "ratchet.statistics.results",
    "accuracy_difference": "ratchet.statistics.results",
    "bootstrap_interval": "ratchet.statistics.bootstrap",
    "clustered_proportion": "ratchet.statistics.intervals",
    "difference_of_proportions": "ratchet.statistics.intervals",
    "paired_difference": "ratchet.statistics.bootstrap",
    "wilson_interval": "ratchet.statistics.intervals",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
    """Import a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ratchet.statistics' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
