"""How sure we are of a number: estimates with intervals, for reports, tracking and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

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


__getattr__ = lazy_names(__name__, _HOMES)
