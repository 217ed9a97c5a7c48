"""How sure we are of a number: estimates with intervals, for reports, tracking and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.statistics.aggregates import interquartile_mean, mean, median, optimality_gap
    from ratchet.statistics.bootstrap import bootstrap_interval, paired_difference
    from ratchet.statistics.estimate import Estimate
    from ratchet.statistics.intervals import (
        clustered_proportion,
        difference_of_proportions,
        wilson_interval,
    )
    from ratchet.statistics.results import accuracy, accuracy_by, accuracy_difference
    from ratchet.statistics.stratified import probability_of_improvement, stratified_interval

__all__ = [
    "Estimate",
    "accuracy",
    "accuracy_by",
    "accuracy_difference",
    "bootstrap_interval",
    "clustered_proportion",
    "difference_of_proportions",
    "interquartile_mean",
    "mean",
    "median",
    "optimality_gap",
    "paired_difference",
    "probability_of_improvement",
    "stratified_interval",
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
    "interquartile_mean": "ratchet.statistics.aggregates",
    "mean": "ratchet.statistics.aggregates",
    "median": "ratchet.statistics.aggregates",
    "optimality_gap": "ratchet.statistics.aggregates",
    "paired_difference": "ratchet.statistics.bootstrap",
    "probability_of_improvement": "ratchet.statistics.stratified",
    "stratified_interval": "ratchet.statistics.stratified",
    "wilson_interval": "ratchet.statistics.intervals",
}


__getattr__ = lazy_names(__name__, _HOMES)
