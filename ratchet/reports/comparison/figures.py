"""The plots of a comparison as plotly.js figures in plain data, as those of a report are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.parameters.test_groups import TestGroups
from ratchet.reports.comparison.cells import chance, interval, number
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.plots import Figure, chance_line, error_bars, level_lines, rounded
from ratchet.statistics.estimate import Estimate

Trace = dict[str, Any]
MAX_DRAWN = 10
"""So many pairs are drawn; more are a table."""
_UPRIGHT = {"x0": 0.5, "x1": 0.5, "y0": 0, "y1": 1}


def aggregate_figures(comparison: Comparison) -> list[Figure]:
    """Draw the interquartile mean of each group with its interval and its seeds."""
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [
        _aggregate_figure(comparison, each, f"aggregate-{place}")
        for place, each in enumerate(found)
    ]


def improvement_figures(comparison: Comparison) -> list[list[Figure]]:
    """Draw the probabilities of improvement, each pair once, with its interval, metric by metric.

    Many pairs are left to their table.
    """
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [
        [_improvement_figure(each, f"improvement-{place}")]
        if 0 < len(each.pairs) <= MAX_DRAWN
        else []
        for place, each in enumerate(found)
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


def _aggregate_figure(comparison: Comparison, found: MetricComparison, identifier: str) -> Figure:
    traces = []
    percent = found.metric.kind != "metric"
    for place, row in enumerate(found.rows):
        trace = _points(row.group.label, [place], [row.iqm], place, percent=percent)
        traces += [_lying(trace), _seed_points(row, place)]
    names = [row.group.label for row in found.rows]
    layout = _forest(names, {"tickformat": ".0%"} if percent else {})
    if found.metric.kind == "accuracy":
        layout |= level_lines({line.label: line.value for line in comparison.lines}, upright=True)
    title = "Interquartile mean, interval and seeds"
    return Figure(identifier, title, "Aggregates", traces, layout, height=forest_height(names))


def _improvement_figure(found: MetricComparison, identifier: str) -> Figure:
    labels = [row.group.label for row in found.rows]
    pairs = [
        each for each in found.improvements if labels.index(each.first) < labels.index(each.second)
    ]
    traces = []
    for place, each in enumerate(pairs):
        color = labels.index(each.first)
        trace = _points(each.first, [place], [each.probability], color)
        trace["text"] = [f"P({each.first} > {each.second}) = {chance(each.probability)} %"]
        traces.append(_lying(trace))
    names = [f"{each.first} · > {each.second}" for each in pairs]
    layout = _forest(names, {"tickformat": ".0%", "range": [-0.02, 1.02]})
    layout["shapes"] = [{**chance_line(), "xref": "x", "yref": "paper", **_UPRIGHT}]
    title = "Probability of improvement"
    return Figure(identifier, title, "Improvement", traces, layout, height=forest_height(names))


def _forest(names: Sequence[str], values: Trace) -> Trace:
    """Lay out rows with their names at the left, the first on top."""
    return {
        "xaxis": values,
        "yaxis": {
            "tickvals": list(range(len(names))),
            "ticktext": [name.replace(" · ", "<br>") for name in names],
            "range": [len(names) - 0.4, -0.6],
        },
        "showlegend": False,
    }


def forest_height(names: Sequence[str]) -> int:
    """Return how high a plot with these rows must be."""
    lines = max((name.count(" · ") + 1 for name in names), default=1)
    return max(290, 70 + len(names) * (20 + 16 * lines))


def _lying(trace: Trace) -> Trace:
    """Turn upright points and intervals to lie in rows."""
    turned = {**trace, "x": trace["y"], "y": trace["x"]}
    if "error_y" in turned:
        turned["error_x"] = turned.pop("error_y")
    return turned


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
        "x": rounded([score for _, score in runs]),
        "y": [place + 0.22] * len(runs),
        "marker": {"size": 6, "symbol": "circle-open"},
        "opacity": 0.7,
        "text": [f"seed {run.seed}: {score:.4g} ({run.label})" for run, score in runs],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": place},
    }


def _shift(place: int, count: int) -> float:
    return (place - (count - 1) / 2) * min(0.16, 0.6 / count)
