"""Estimates with intervals, for reports, tracking and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.statistics.curves import RunCurve as RunCurve
    from ratchet.statistics.curves import TimeToThreshold as TimeToThreshold
    from ratchet.statistics.curves import learning_curve as learning_curve
    from ratchet.statistics.curves import mean_height as mean_height
    from ratchet.statistics.curves import median_position as median_position
    from ratchet.statistics.differences import iqm_difference as iqm_difference
    from ratchet.statistics.estimate import Band as Band
    from ratchet.statistics.estimate import Estimate as Estimate
    from ratchet.statistics.intervals import bootstrap_interval as bootstrap_interval
    from ratchet.statistics.intervals import clustered_proportion as clustered_proportion
    from ratchet.statistics.intervals import difference_of_proportions as difference_of_proportions
    from ratchet.statistics.intervals import paired_difference as paired_difference
    from ratchet.statistics.intervals import wilson_interval as wilson_interval
    from ratchet.statistics.permutation import Contrast as Contrast
    from ratchet.statistics.permutation import PermutationTests as PermutationTests
    from ratchet.statistics.permutation import adjust_for_many as adjust_for_many
    from ratchet.statistics.permutation import permutation_test as permutation_test
    from ratchet.statistics.permutation import permutation_tests as permutation_tests
    from ratchet.statistics.permutation import smallest_p as smallest_p
    from ratchet.statistics.power import Power as Power
    from ratchet.statistics.power import detectable_effect as detectable_effect
    from ratchet.statistics.power import needed_runs as needed_runs
    from ratchet.statistics.power import power_of_groups as power_of_groups
    from ratchet.statistics.power import power_of_t_test as power_of_t_test
    from ratchet.statistics.results import accuracy as accuracy
    from ratchet.statistics.results import accuracy_by as accuracy_by
    from ratchet.statistics.results import accuracy_difference as accuracy_difference
    from ratchet.statistics.stratified import interquartile_mean as interquartile_mean
    from ratchet.statistics.stratified import mean as mean
    from ratchet.statistics.stratified import median as median
    from ratchet.statistics.stratified import optimality_gap as optimality_gap
    from ratchet.statistics.stratified import performance_profile as performance_profile
    from ratchet.statistics.stratified import (
        probability_of_improvement as probability_of_improvement,
    )
    from ratchet.statistics.stratified import stratified_interval as stratified_interval

export_lazily(__name__)
