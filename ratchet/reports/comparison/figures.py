"""The plots of a comparison as plotly.js figures in plain data, as those of a report are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ratchet.parameters.test_groups import TestGroups
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison, Options
from ratchet.reports.comparison.groups import Group
from ratchet.reports.comparison.runs import ComparedRun
from ratchet.reports.comparison.text import chance, interval, number
from ratchet.reports.plots import Figure, chance_line, error_bars, rounded
from ratchet.statistics.aggregates import interquartile_mean
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.stratified import stratified_interval

CURVE_POINTS = 40
CURVE_RESAMPLES = 1000
CURVES = (("verifier.accuracy", True), ("mean_episode_length", False))
"""Metrics of training that are drawn where all runs have them, and whether they are shares."""

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


def curve_figures(comparison: Comparison, stage: str = "train") -> list[Figure]:
    """Draw how groups learn: the interquartile mean over seeds, with its interval as a band."""
    figures = []
    for name, is_share in CURVES:
        traces: list[Trace] = []
        for place, group in enumerate(comparison.grouping.groups):
            traces += _curve(group, stage, name, place, comparison.options)
        if traces:
            layout: dict[str, Any] = {"xaxis": {"title": {"text": "iteration"}}, "yaxis": {}}
            if is_share:
                layout["yaxis"] = {"tickformat": ".0%"}
            title = f"{name}, {stage}"
            figures.append(Figure(f"curve-{name}", title, "Training", traces, layout))
    return figures


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


def _curve(group: Group, stage: str, name: str, place: int, options: Options) -> list[Trace]:
    """Draw a group's line and band over chunks of iterations; nothing if a run lacks the metric."""
    tasks = [[_series(run, stage, name) for run in task] for task in group.tasks]
    shared = set.intersection(*(set(series) for task in tasks for series in task))
    iterations = sorted(shared)
    if len(iterations) < 2:
        return []
    step = math.ceil(len(iterations) / CURVE_POINTS)
    chunks = [iterations[start : start + step] for start in range(0, len(iterations), step)]
    estimates = [
        stratified_interval(
            [[_mean_over(series, chunk) for series in task] for task in tasks],
            interquartile_mean,
            level=options.level,
            method=options.method,
            num_resamples=CURVE_RESAMPLES,
            seed=options.seed,
        )
        for chunk in chunks
    ]
    xs = [chunk[-1] for chunk in chunks]
    line: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": group.label,
        "x": xs,
        "y": rounded([estimate.value for estimate in estimates]),
        "line": {"width": 2},
        "meta": {"color": place},
    }
    if math.isnan(estimates[0].low):
        return [line]
    ends = [e.high for e in estimates] + [e.low for e in reversed(estimates)]
    band: Trace = {
        "type": "scatter",
        "mode": "none",
        "x": xs + xs[::-1],
        "y": rounded(ends),
        "fill": "toself",
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {"color": place, "of": group.label},
    }
    return [band, line]


def _series(run: ComparedRun, stage: str, name: str) -> dict[int, float]:
    return {
        point.iteration: float(point.values[name])
        for point in run.points
        if point.stage == stage and name in point.values and math.isfinite(point.values[name])
    }


def _mean_over(series: dict[int, float], iterations: Sequence[int]) -> float:
    return math.fsum(series[i] for i in iterations) / len(iterations)


def _shift(place: int, count: int) -> float:
    return (place - (count - 1) / 2) * min(0.16, 0.6 / count)
