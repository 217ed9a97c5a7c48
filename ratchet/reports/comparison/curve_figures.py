"""Curves with bands as plotly.js figures: performance profiles, and how groups learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ratchet.reports.comparison.cells import interval, number, position
from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.figures import forest_height
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.shown import learning_title
from ratchet.reports.curves import DASHES
from ratchet.reports.plots import Figure, level_lines, rounded
from ratchet.statistics.band import Band

Trace = dict[str, Any]
MAX_BANDS = 4
"""The bands of more groups are faint."""
NUM_COLORS = 8  # in the page's palette


def profile_figures(comparison: Comparison) -> list[Figure]:
    """Draw which share of each group's runs is better than each threshold."""
    found = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    return [_profile_figure(each, f"profile-{place}") for place, each in enumerate(found)]


def learning_figures(comparison: Comparison) -> list[Figure]:
    """Draw how groups learn, as far as all runs of a group go."""
    return [
        _learning_figure(comparison, each, f"learning-{place}")
        for place, each in enumerate(comparison.learning)
    ]


def _profile_figure(found: MetricComparison, identifier: str) -> Figure:
    traces: list[Trace] = []
    percent, faint = found.metric.kind != "metric", len(found.rows) > MAX_BANDS
    for place, row in enumerate(found.rows):
        if row.profile is not None:
            texts = [
                f"above {number(x, percent=percent)}: {number(y)} % of runs"
                for x, y in zip(row.profile.positions, row.profile.values, strict=True)
            ]
            # a run counts until its own score, so the share falls in steps
            traces += band_traces(
                row.profile, row.group.label, place, texts, faint=faint, shape="vh"
            )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "score τ"}} | ({"tickformat": ".0%"} if percent else {}),
        "yaxis": {
            "title": {"text": "runs with a score above τ"},
            "tickformat": ".0%",
            "range": [-0.02, 1.02],
        },
    }
    height = forest_height([row.group.label for row in found.rows])  # it stands beside that
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
        layout["yaxis"] = {"tickformat": ".0%"}
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
    """Draw a line with its band, faint among many; a point where there is only one position."""
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
