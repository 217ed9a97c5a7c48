"""A comparison as plain data for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.formatting import band_data, estimate_data, pair_data
from ratchet.reports.comparison.learning import LearningComparison


def to_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as data for JSON; non-finite numbers are None."""
    grouping, options = comparison.grouping, comparison.options
    return {
        "schema_version": 1,
        "title": comparison.title,
        "commands": list(comparison.commands),
        "level": options.level,
        "method": options.method,
        "num_resamples": options.num_resamples,
        "seed": options.seed,
        "power": options.power,
        "differing": list(grouping.paths),
        "tasks": list(grouping.tasks),
        "groups": [
            {
                "label": group.label,
                "values": dict(group.values),
                "seeds": group.seeds,
                "runs": [run.label for run in group.runs],
            }
            for group in grouping.groups
        ],
        "metrics": [_metric_data(found) for found in comparison.metrics],
        "learning": [_learning_data(found) for found in comparison.learning],
        "lines": [asdict(line) for line in comparison.lines],
        "notes": list(comparison.notes),
    }


def _metric_data(found: MetricComparison) -> dict[str, Any]:
    return {
        "name": found.metric.name,
        "title": found.metric.title,
        "kind": found.metric.kind,
        "test": found.metric.test,
        "groups": [
            {
                "label": row.group.label,
                "scores": [list(task) for task in row.scores],
                "seeds": [[run.seed for run in task] for task in row.group.tasks],
                "iqm": estimate_data(row.iqm),
                "median": estimate_data(row.median),
                "mean": estimate_data(row.mean),
                "optimality_gap": None if row.gap is None else estimate_data(row.gap),
                "profile": None if row.profile is None else band_data(row.profile),
            }
            for row in found.rows
        ],
        "probability_of_improvement": [
            {"first": each.first, "second": each.second, **estimate_data(each.probability)}
            for each in found.improvements
        ],
        "pairs": [pair_data(pair) for pair in found.pairs],
    }


def _learning_data(found: LearningComparison) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "axis": found.axis,
        "start": found.start,
        "end": found.end,
        "groups": [
            {
                "label": row.group.label,
                "curve": band_data(row.band),
                "ends": list(row.ends),
                "mean_height": None if row.area is None else estimate_data(row.area),
                "reaching": [
                    {
                        "threshold": each.threshold,
                        "positions": list(each.positions),
                        "reached": list(each.reached),
                        "median": estimate_data(each.median),
                    }
                    for each in row.reaching
                ],
            }
            for row in found.rows
        ],
    }
