"""Plots of a sweep's page: parallel coordinates and parameter importance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ratchet.reports.comparison.figures import forest_height
from ratchet.reports.plots import Figure, rounded
from ratchet.reports.sweep.status import SweepStatus
from ratchet.reports.tables import show
from ratchet.statistics.importance import Importance, encoded

MAX_LINES = 300
MAX_TICKS = 6
_LOGARITHMIC = 50.0
"""Ratio of positive values above which an axis is logarithmic."""

Trace = dict[str, Any]


def coordinates_figure(status: SweepStatus) -> Figure | None:
    """Draw each member with a score as a line through its values; None with fewer than two."""
    scored = status.scored
    if len(scored) < 2:
        return None
    step = math.ceil(len(scored) / MAX_LINES)
    members = scored[::step][::-1]  # the best on top
    names = [*status.paths, status.measure]
    columns: list[list[object]] = [
        [member.changes.get(path) for member in members] for path in status.paths
    ]
    columns.append([member.score for member in members])
    places, annotations = [], []
    for x, column in enumerate(columns):
        heights, ticks = _axis(column, status if x == len(columns) - 1 else None)
        places.append(heights)
        is_last = x == len(columns) - 1
        annotations += [_tick(x, height, text, right=is_last) for height, text in ticks]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": list(range(len(columns))),
            "y": rounded([heights[k] + _apart(places[-1][k]) for heights in places[:-1]])
            + rounded([places[-1][k]]),
            "line": {"width": 1.5},
            "opacity": 0.8,
            "text": f"{member.label}: {status.shown_score(member.score)}",
            "hovertemplate": "%{text}<extra></extra>",
            "meta": {
                "color": 0,
                "shade": 1 - places[-1][k] if status.minimize else places[-1][k],
            },
        }
        for k, member in enumerate(members)
    ]
    layout: dict[str, Any] = {
        "xaxis": {
            "tickvals": list(range(len(names))),
            "ticktext": [_in_lines(name.rpartition(".")[2]) for name in names],
            "range": [-0.3, len(names) - 0.5],
            "showgrid": True,
        },
        "yaxis": {"visible": False, "range": [-0.08, 1.08]},
        "annotations": annotations,
        "showlegend": False,
    }
    note = f"{len(members)} of {len(scored)} members, evenly by score" if step > 1 else ""
    title = "Each line is a member; the better the score, the more orange"
    return Figure("coordinates", title, "Sweep", traces, layout, note=note, height=380)


def importance_figure(importance: Importance) -> Figure:
    """Draw the importance of each parameter, with its spread over shuffles."""
    names = [each.path for each in importance.parameters]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": rounded([each.value for each in importance.parameters]),
        "y": list(range(len(names))),
        "error_x": {"type": "data", "array": rounded([e.spread for e in importance.parameters])},
        "text": [f"{e.value:.2f} ± {e.spread:.2f}" for e in importance.parameters],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": 0},
    }
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "growth of the squared error<br>÷ variance of the scores"},
            "rangemode": "tozero",
        },
        "yaxis": {
            "tickvals": list(range(len(names))),
            "ticktext": [_in_lines(name) for name in names],
            "range": [len(names) - 0.4, -0.6],
        },
        "bargap": 0.5,
        "showlegend": False,
    }
    return Figure(
        "importance", "Importance", "Sweep", [trace], layout, height=min(380, forest_height(names))
    )


def _axis(
    values: Sequence[object], scores: SweepStatus | None
) -> tuple[list[float], list[tuple[float, str]]]:
    """Scale values to [0, 1]; return their positions and the ticks of the axis."""
    numbers = encoded(values)
    is_numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    low, high = float(numbers.min()), float(numbers.max())
    logarithmic = is_numeric and low > 0 and high / low >= _LOGARITHMIC and scores is None
    scaled = [math.log(each) if logarithmic else float(each) for each in numbers]
    low, high = min(scaled), max(scaled)
    size = (high - low) or 1.0
    heights = [(each - low) / size if high > low else 0.5 for each in scaled]
    marks = {
        round(height, 6): show(value) if scores is None else scores.shown_score(float(number))
        for height, value, number in zip(heights, values, numbers, strict=True)
    }
    ordered = sorted(marks.items())
    if len(ordered) > MAX_TICKS:
        ordered = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    return heights, ordered


def _in_lines(name: str) -> str:
    """Break a name into one line per word."""
    return name.replace("_", " ").replace(" ", "<br>")


def _apart(score: float) -> float:
    """Return an offset that separates lines of members with equal values."""
    return 0.04 * (score - 0.5)


def _tick(x: int, height: float, text: str, *, right: bool) -> dict[str, Any]:
    side = {"xanchor": "left", "xshift": 4} if right else {"xanchor": "right", "xshift": -4}
    return {"x": x, "y": height, "text": text, "showarrow": False, **side}
