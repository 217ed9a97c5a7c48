"""The plots of a comparison as plotly.js figures in plain data, as those of a report are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.parameters.test_groups import TestGroups
from ratchet.reports.comparison.cells import chance, interval, number
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.plots import Figure, chance_line, error_bars, rounded
from ratchet.statistics.estimate import Estimate

Trace = dict[str, Any]


def aggregate_figures(comparison: Comparison) -> list[Figure]:
    """Draw the interquartile mean of each group with its interval and its seeds."""
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [_aggregate_figure(each, f"aggregate-{place}") for place, each in enumerate(found)]


def improvement_figures(comparison: Comparison) -> list[Figure]:
    """Draw the probabilities of improvement, each pair once, with its interval."""
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [
        _improvement_figure(each, f"improvement-{place}")
        for place, each in enumerate(found)
        if each.improvements
    ]


def group_figures(comparison: Comparison) -> list[tuple[TestGroups, list[Figure]]]:
    """Draw the accuracy by group, a plot for each test set, kind of groups by kind."""
    figures: dict[str, tuple[TestGroups, list[Figure]]] = {}
    for kind, test, mine in comparison.by_groups():
        groups = [row.group.label for row in mine[0].rows]
        traces = [
            _points(
                label,
                [k + _shift(place, len(groups)) for k in range(len(mine))],
                [each.rows[place].iqm for each in mine],
                place,
            )
            for place, label in enumerate(groups)
        ]
        layout = {
            "xaxis": {
                "title": {"text": kind.axis},
                "tickvals": list(range(len(mine))),
                "ticktext": [each.metric.title for each in mine],
                "range": [-0.5, len(mine) - 0.5],
            },
            "yaxis": {"title": {"text": "accuracy"}, "tickformat": ".0%", "range": [0, 1.02]},
            "shapes": [chance_line()],
        }
        figure = Figure(f"{kind.name}-{test}", test, "Groups", traces, layout)
        figures.setdefault(kind.name, (kind, []))[1].append(figure)
    return list(figures.values())


def _aggregate_figure(found: MetricComparison, identifier: str) -> Figure:
    traces = []
    percent = found.metric.kind != "metric"
    for place, row in enumerate(found.rows):
        label = row.group.label
        traces.append(_points(label, [place], [row.iqm], place, percent=percent))
        traces.append(_seed_points(row, place))
    layout: dict[str, Any] = {
        "xaxis": {
            "tickvals": list(range(len(found.rows))),
            "ticktext": [row.group.label for row in found.rows],
            "range": [-0.6, len(found.rows) - 0.4],
        },
        "yaxis": {"tickformat": ".0%"} if percent else {},
        "showlegend": False,
    }
    return Figure(
        identifier, "Interquartile mean, interval and seeds", "Aggregates", traces, layout
    )


def _improvement_figure(found: MetricComparison, identifier: str) -> Figure:
    labels = [row.group.label for row in found.rows]
    pairs = [
        each for each in found.improvements if labels.index(each.first) < labels.index(each.second)
    ]
    traces = []
    for label in labels:
        mine = [(k, each) for k, each in enumerate(pairs) if each.first == label]
        if mine:
            trace = _points(
                label,
                [k for k, _ in mine],
                [each.probability for _, each in mine],
                labels.index(label),
            )
            trace["text"] = [
                f"P({each.first} > {each.second}) = {chance(each.probability)} %"
                for _, each in mine
            ]
            traces.append(trace)
    layout = {
        "xaxis": {
            "tickvals": list(range(len(pairs))),
            "ticktext": [f"{each.first} > {each.second}" for each in pairs],
            "range": [-0.6, len(pairs) - 0.4],
        },
        "yaxis": {"tickformat": ".0%", "range": [-0.02, 1.02]},
        "shapes": [chance_line()],
        "showlegend": False,
    }
    return Figure(identifier, "Probability of improvement", "Improvement", traces, layout)


def _points(
    label: str,
    xs: Sequence[float],
    estimates: Sequence[Estimate],
    color: int,
    *,
    percent: bool = True,
) -> Trace:
    """Draw points with their intervals."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": list(xs),
        "y": rounded([estimate.value for estimate in estimates]),
        "error_y": error_bars(estimates),
        "marker": {"size": 10},
        "text": [
            f"{label}: {number(e.value, percent=percent)} {interval(e, percent=percent)}"
            for e in estimates
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": color},
    }


def _seed_points(row: GroupScores, place: int) -> Trace:
    """Draw each run faintly beside its group's point."""
    runs = [
        (run, score)
        for task, scores in zip(row.group.tasks, row.scores, strict=True)
        for run, score in zip(task, scores, strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [place + 0.18] * len(runs),
        "y": rounded([score for _, score in runs]),
        "marker": {"size": 6, "symbol": "circle-open"},
        "opacity": 0.7,
        "text": [f"seed {run.seed}: {score:.4g} ({run.label})" for run, score in runs],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": place},
    }


def _shift(place: int, count: int) -> float:
    return (place - (count - 1) / 2) * min(0.16, 0.6 / count)
