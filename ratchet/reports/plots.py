"""Plots of a report as plotly.js figures in plain data.

A trace's ``meta.color`` is an index into the page's palette, for light and dark themes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.parameters.base import TestGroups
from ratchet.reports.content import Arm
from ratchet.reports.tables import GroupRow
from ratchet.reports.transcripts import PackedTranscripts
from ratchet.statistics.estimate import Estimate

_SHORT_AXIS = 10


@dataclass(frozen=True)
class Figure:
    """One plotly.js figure.

    ``note`` is shown next to the title; a ``folded`` figure is shown on demand. ``height`` is in
    pixels, 0 for the page's default.
    """

    identifier: str
    title: str
    family: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""
    folded: bool = False
    height: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the data for the page's script."""
        return {"id": self.identifier, "data": self.data, "layout": self.layout}


def group_figures(
    groups: TestGroups, rows: Sequence[GroupRow], labels: Sequence[str]
) -> list[Figure]:
    """Draw the accuracy by group, a plot for each test set, with error bars."""
    figures = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        mine = [row for row in rows if row.dataset == dataset]
        traces = [
            trace
            for label_index, label in enumerate(labels)
            if (trace := _group_trace(mine, label_index, label, len(labels))) is not None
        ]
        layout = {
            "xaxis": {
                "title": {"text": groups.axis},
                "tickvals": list(range(len(mine))),
                "ticktext": [row.label for row in mine],
                "range": [-0.5, len(mine) - 0.5],
            },
            "yaxis": {"title": {"text": "accuracy"}, "tickformat": ".3~%", "range": [0, 1.02]},
            "shapes": [chance_line()],
        }
        figures.append(Figure(f"{groups.name}-{dataset}", dataset, "Groups", traces, layout))
    return figures


def tested_figures(
    arms: Sequence[Arm], transcripts: Sequence[PackedTranscripts], final: Mapping[str, int]
) -> list[Figure]:
    """Draw the test accuracies of arms during training, with intervals.

    Colours follow the order of arms; final tests are drawn at the iterations in ``final``.
    """
    traces = []
    for arm_index, arm in enumerate(arms):
        tests = [t for t in transcripts if t.is_test and t.label == arm.label and t.accuracy]
        if len(tests) > 1:
            end = final.get(arm.label, 0)
            traces.append(_tested_trace(tests, end, arm_index, arm.label))
    if not traces:
        return []
    layout = {
        "xaxis": counted_axis("iteration", [x for trace in traces for x in trace["x"]]),
        "yaxis": {"tickformat": ".3~%", "range": [0, 1.02]},
        "shapes": [chance_line()],
        "showlegend": len(traces) > 1,
    }
    return [
        Figure("tested-accuracy", "Accuracy in tests, 95 % intervals", "Accuracy", traces, layout)
    ]


def _tested_trace(
    tests: Sequence[PackedTranscripts], end: int, arm_index: int, label: str
) -> dict[str, Any]:
    accuracies = [(end if t.iteration is None else t.iteration, t.accuracy) for t in tests]
    points = [(x, estimate) for x, estimate in accuracies if estimate is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "x": [x for x, _ in points],
        "y": rounded([estimate.value for _, estimate in points]),
        "error_y": error_bars([estimate for _, estimate in points]),
        "line": {"width": 2},
        "marker": {"size": 8},
        "text": [f"{estimate.percent()}, n={estimate.n}" for _, estimate in points],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": arm_index},
    }


def error_bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Draw intervals; non-finite values leave a gap."""
    return {
        "type": "data",
        "symmetric": False,
        "array": rounded([estimate.high - estimate.value for estimate in estimates]),
        "arrayminus": rounded([estimate.value - estimate.low for estimate in estimates]),
        "thickness": 1.6,
        "width": 4,
    }


def _group_trace(
    rows: Sequence[GroupRow], label_index: int, label: str, num_labels: int
) -> dict[str, Any] | None:
    cells = [
        (k, cell) for k, row in enumerate(rows) if (cell := row.cells[label_index]) is not None
    ]
    if not cells:
        return None
    shift = (label_index - (num_labels - 1) / 2) * min(0.16, 0.6 / num_labels)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [k + shift for k, _ in cells],
        "y": rounded([cell.value for _, cell in cells]),
        "error_y": error_bars([cell for _, cell in cells]),
        "marker": {"size": 9},
        "text": [f"{label}: {cell.percent()}, n={cell.n}" for _, cell in cells],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": label_index},
    }


def counted_axis(title: str, counts: Sequence[int]) -> dict[str, Any]:
    """Describe an integer axis; a short one needs explicit integer ticks."""
    axis: dict[str, Any] = {"title": {"text": title}}
    is_short = max(counts) - min(counts) <= _SHORT_AXIS
    return axis | {"tick0": 0, "dtick": 1} if is_short else axis


def chance_line() -> dict[str, Any]:
    """Mark chance level."""
    line = {"dash": "dot", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.5, "y1": 0.5, "line": line}


def rounded(values: Sequence[float]) -> list[float | None]:
    """Round to five digits; non-finite values become None."""
    numbers = [float(f"{value:.5g}") for value in values]
    return [
        (number if math.isfinite(number) else value) if math.isfinite(value) else None
        for value, number in zip(values, numbers, strict=True)  # the largest ones round to inf
    ]
