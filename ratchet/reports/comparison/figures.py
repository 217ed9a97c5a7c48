"""Plots of a comparison as plotly.js figures in plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ratchet.parameters.base import TestGroups
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.comparison.display_tables import learning_title
from ratchet.reports.comparison.formatting import chance, interval, number, position
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.curves import DASHES
from ratchet.reports.plots import Figure, chance_line, error_bars, level_lines, rounded
from ratchet.statistics.estimate import Band, Estimate

Trace = dict[str, Any]
MAX_DRAWN = 10
"""Maximum number of pairs drawn; more are only tabulated."""
_UPRIGHT = {"x0": 0.5, "x1": 0.5, "y0": 0, "y1": 1}


def aggregate_figures(comparison: Comparison) -> list[Figure]:
    """Draw the interquartile mean of each group with its interval and its seeds."""
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [
        _aggregate_figure(comparison, each, f"aggregate-{place}")
        for place, each in enumerate(found)
    ]


def improvement_figures(comparison: Comparison) -> list[list[Figure]]:
    """Draw the probabilities of improvement, each pair once, with its interval, by metric.

    More than ``MAX_DRAWN`` pairs are not drawn.
    """
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [
        [_improvement_figure(each, f"improvement-{place}")]
        if 0 < len(each.improvements) <= 2 * MAX_DRAWN
        else []
        for place, each in enumerate(found)
    ]


def group_figures(comparison: Comparison) -> list[tuple[TestGroups, list[Figure]]]:
    """Draw the accuracy by group, a plot for each test set, by kind of groups."""
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
            "yaxis": {"title": {"text": "accuracy"}, "tickformat": ".3~%", "range": [0, 1.02]},
            "shapes": [chance_line()],
        }
        figure = Figure(f"{kind.name}-{test}", test, "Groups", traces, layout)
        figures.setdefault(kind.name, (kind, []))[1].append(figure)
    return list(figures.values())


def _aggregate_figure(comparison: Comparison, found: MetricComparison, identifier: str) -> Figure:
    traces = []
    percent = found.metric.is_share
    for place, row in enumerate(found.rows):
        trace = _points(row.group.label, [place], [row.iqm], place, percent=percent)
        traces += [_lying(trace), _seed_points(row, place)]
    names = [row.group.label for row in found.rows]
    layout = _forest(names, {"tickformat": ".3~%"} if percent else {})
    if lines := comparison.lines_of(found):
        layout |= level_lines({line.label: line.value for line in lines}, upright=True)
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
        trace["text"] = [
            f"P({each.first} better than {each.second}) = {chance(each.probability)} %"
        ]
        traces.append(_lying(trace))
    names = [f"{each.first} · better than {each.second}" for each in pairs]
    layout = _forest(names, {"tickformat": ".3~%", "range": [-0.02, 1.02]})
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
    """Return the height of a plot with these rows, in pixels."""
    lines = max((name.count(" · ") + 1 for name in names), default=1)
    return max(290, 70 + len(names) * (20 + 16 * lines))


def _lying(trace: Trace) -> Trace:
    """Transpose vertical points and intervals into rows."""
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
    """Draw each run faintly below its group's point."""
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


MAX_BANDS = 4
"""With more groups, bands are faint."""
NUM_COLORS = 8  # in the page's palette


def profile_figures(comparison: Comparison) -> list[Figure]:
    """Draw the share of each group's runs better than each threshold."""
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [_profile_figure(each, f"profile-{place}") for place, each in enumerate(found)]


def learning_figures(comparison: Comparison) -> list[Figure]:
    """Draw the learning curves of groups up to their first run's end."""
    return [
        _learning_figure(comparison, each, f"learning-{place}")
        for place, each in enumerate(comparison.learning)
    ]


def _profile_figure(found: MetricComparison, identifier: str) -> Figure:
    traces: list[Trace] = []
    percent, faint = found.metric.is_share, len(found.rows) > MAX_BANDS
    side, shape = ("below", "hv") if found.metric.less_is_better else ("above", "vh")
    for place, row in enumerate(found.rows):
        if row.profile is not None:
            texts = [
                f"{side} {number(x, percent=percent)}: {number(y)} % of runs"
                for x, y in zip(row.profile.positions, row.profile.values, strict=True)
            ]
            # a run counts until (less is better: from) its own score: the share changes in steps
            traces += band_traces(
                row.profile, row.group.label, place, texts, faint=faint, shape=shape
            )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "score τ"}} | ({"tickformat": ".3~%"} if percent else {}),
        "yaxis": {
            "title": {"text": f"runs with a score {side} τ"},
            "tickformat": ".3~%",
            "range": [-0.02, 1.02],
        },
    }
    height = forest_height([row.group.label for row in found.rows])  # matches the plot next to it
    return Figure(identifier, "Performance profile", "Profiles", traces, layout, height=height)


def _learning_figure(comparison: Comparison, found: LearningComparison, identifier: str) -> Figure:
    traces: list[Trace] = []
    faint = len(found.rows) > MAX_BANDS
    for place, row in enumerate(found.rows):
        texts = [
            f"{row.group.label} at {position(x)}: {number(e.value, percent=found.is_share)}"
            f" {interval(e, percent=found.is_share)}"
            for k, x in enumerate(row.band.positions)
            for e in [row.band.estimate(k)]
        ]
        traces += band_traces(row.band, row.group.label, place, texts, faint=faint)
    layout: dict[str, Any] = {"xaxis": {"title": {"text": found.axis}}, "yaxis": {}}
    if found.is_share:
        layout["yaxis"] = {"tickformat": ".3~%"}
    if found.is_accuracy:
        layout |= level_lines({line.label: line.value for line in comparison.lines})
    title = learning_title(found).removeprefix("learning: ")
    return Figure(identifier, title, "Training", traces, layout)


def band_traces(
    band: Band,
    label: str,
    color: int,
    texts: Sequence[str],
    *,
    faint: bool,
    shape: str = "linear",
) -> list[Trace]:
    """Draw a line with its band, or a point for a single position."""
    if not len(band):
        return []
    xs = list(band.positions)
    line: Trace = {
        "type": "scatter",
        "mode": "lines" if len(xs) > 1 else "markers",
        "name": label,
        "x": xs,
        "y": rounded(band.values),
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"width": 2, "shape": shape, "dash": DASHES[color // NUM_COLORS % len(DASHES)]},
        "meta": {"color": color},
    }
    if math.isnan(band.lows[0]):
        return [line]
    around: Trace = {
        "type": "scatter",
        "mode": "none",
        "x": xs + xs[::-1],
        "y": rounded([*band.highs, *reversed(band.lows)]),
        "fill": "toself",
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {"color": color, "of": label} | ({"fill": "14"} if faint else {}),
    }
    return [around, line]
