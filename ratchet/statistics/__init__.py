"""How sure we are of a number: estimates with intervals, for reports, tracking and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.statistics.aggregates import interquartile_mean, mean, median, optimality_gap
    from ratchet.statistics.band import Band
    from ratchet.statistics.bootstrap import bootstrap_interval, paired_difference
    from ratchet.statistics.curves import RunCurve, learning_curve, mean_height
    from ratchet.statistics.estimate import Estimate
    from ratchet.statistics.intervals import (
        clustered_proportion,
        difference_of_proportions,
        wilson_interval,
    )
    from ratchet.statistics.pairing import adjust_for_many, aggregate_difference, permutation_test
    from ratchet.statistics.power import (
        Power,
        detectable_effect,
        needed_runs,
        power_of_groups,
        power_of_t_test,
    )
    from ratchet.statistics.profiles import performance_profile
    from ratchet.statistics.reaching import Reaching, median_position
    from ratchet.statistics.results import accuracy, accuracy_by, accuracy_difference
    from ratchet.statistics.stratified import probability_of_improvement, stratified_interval

__all__ = [
    "Band",
    "Estimate",
    "Power",
    "Reaching",
    "RunCurve",
    "accuracy",
    "accuracy_by",
    "accuracy_difference",
    "adjust_for_many",
    "aggregate_difference",
    "bootstrap_interval",
    "clustered_proportion",
    "detectable_effect",
    "difference_of_proportions",
    "interquartile_mean",
    "learning_curve",
    "mean",
    "mean_height",
    "median",
    "median_position",
    "needed_runs",
    "optimality_gap",
    "paired_difference",
    "performance_profile",
    "permutation_test",
    "power_of_groups",
    "power_of_t_test",
    "probability_of_improvement",
    "stratified_interval",
    "wilson_interval",
]

_HOMES = {
    "Band": "ratchet.statistics.band",
    "Estimate": "ratchet.statistics.estimate",
    "Power": "ratchet.statistics.power",
    "Reaching": "ratchet.statistics.reaching",
    "RunCurve": "ratchet.statistics.curves",
    "accuracy": "ratchet.statistics.results",
    "accuracy_by": "ratchet.statistics.results",
    "accuracy_difference": "ratchet.statistics.results",
    "adjust_for_many": "ratchet.statistics.pairing",
    "aggregate_difference": "ratchet.statistics.pairing",
    "bootstrap_interval": "ratchet.statistics.bootstrap",
    "clustered_proportion": "ratchet.statistics.intervals",
    "detectable_effect": "ratchet.statistics.power",
    "difference_of_proportions": "ratchet.statistics.intervals",
    "interquartile_mean": "ratchet.statistics.aggregates",
    "learning_curve": "ratchet.statistics.curves",
    "mean": "ratchet.statistics.aggregates",
    "mean_height": "ratchet.statistics.curves",
    "median": "ratchet.statistics.aggregates",
    "median_position": "ratchet.statistics.reaching",
    "needed_runs": "ratchet.statistics.power",
    "optimality_gap": "ratchet.statistics.aggregates",
    "paired_difference": "ratchet.statistics.bootstrap",
    "performance_profile": "ratchet.statistics.profiles",
    "permutation_test": "ratchet.statistics.pairing",
    "power_of_groups": "ratchet.statistics.power",
    "power_of_t_test": "ratchet.statistics.power",
    "probability_of_improvement": "ratchet.statistics.stratified",
    "stratified_interval": "ratchet.statistics.stratified",
    "wilson_interval": "ratchet.statistics.intervals",
}


__getattr__ = lazy_names(__name__, _HOMES)
