"""The plots of a report as plotly.js figures in plain data; colours are left to the page.

A trace's ``meta.color`` is a place in the page's palette, so that light and dark may differ.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.parameters.test_groups import TestGroups
from ratchet.reports.content import Arm
from ratchet.reports.tables import GroupRow
from ratchet.reports.transcripts import PackedTranscripts
from ratchet.statistics.estimate import Estimate

MAX_POINTS = 500
SMOOTH_FROM = 40
DASHES = ("solid", "dash", "dot", "dashdot")
FAMILIES = (
    ("Accuracy", re.compile(r"accura|correct")),
    ("Reward", re.compile(r"reward|return")),
    ("Loss", re.compile(r"loss|objective")),
    ("KL divergence", re.compile(r"(^|[^a-z])(approx_)?kl([^a-z]|$)")),
    ("Entropy", re.compile(r"entropy")),
)
OTHER = "Other"
Series = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Figure:
    """One plot: where it belongs and what plotly.js draws."""

    identifier: str
    title: str
    family: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return what the page's script reads."""
        return {"id": self.identifier, "data": self.data, "layout": self.layout}


def curve_figures(arms: Sequence[Arm], stage_prefix: str, x_title: str) -> list[Figure]:
    """Draw the metrics of all stages whose name begins with a prefix, families in order.

    Agents' versions of a metric share a plot; so do arms. Colours tell arms apart and dashes
    agents; with one arm, colours tell agents apart.
    """
    grouped: dict[str, dict[tuple[int, str], Series]] = defaultdict(dict)
    for place, arm in enumerate(arms):
        for name, series in _series_by_name(arm, stage_prefix).items():
            base, agent = split_agent(name, arm.agent_names())
            grouped[base][place, agent] = series
    agents = sorted({agent for curves in grouped.values() for _, agent in curves})
    order = [name for name, _ in FAMILIES] + [OTHER]
    bases = sorted(grouped, key=lambda base: (order.index(family_of(base)), base))
    return [
        _curve_figure(f"{stage_prefix}-{number}", base, grouped[base], arms, agents, x_title)
        for number, base in enumerate(bases)
    ]


def group_figures(
    groups: TestGroups, rows: Sequence[GroupRow], labels: Sequence[str]
) -> list[Figure]:
    """Draw the accuracy by group, a plot for each test set, with error bars."""
    figures = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        mine = [row for row in rows if row.dataset == dataset]
        traces = [
            trace
            for place, label in enumerate(labels)
            if (trace := _group_trace(mine, place, label, len(labels))) is not None
        ]
        layout = {
            "xaxis": {
                "title": {"text": groups.axis},
                "tickvals": list(range(len(mine))),
                "ticktext": [row.label for row in mine],
                "range": [-0.5, len(mine) - 0.5],
            },
            "yaxis": {"title": {"text": "accuracy"}, "tickformat": ".0%", "range": [0, 1.02]},
            "shapes": [chance_line()],
        }
        figures.append(Figure(f"{groups.name}-{dataset}", dataset, "Groups", traces, layout))
    return figures


def tested_figures(
    arms: Sequence[Arm], transcripts: Sequence[PackedTranscripts], final: Mapping[str, int]
) -> list[Figure]:
    """Draw the accuracy of the tests of arms that are tested while they learn, with intervals.

    The arms' order gives the colours; final tests stand at the iterations in ``final``.
    """
    traces = []
    for place, arm in enumerate(arms):
        tests = [t for t in transcripts if t.is_test and t.label == arm.label and t.accuracy]
        if len(tests) > 1:
            end = final.get(arm.label, 0)
            traces.append(_tested_trace(tests, end, place, arm.label))
    if not traces:
        return []
    layout = {
        "xaxis": {"title": {"text": "iteration"}},
        "yaxis": {"tickformat": ".0%", "range": [0, 1.02]},
        "shapes": [chance_line()],
        "showlegend": len(traces) > 1,
    }
    return [
        Figure("tested-accuracy", "Accuracy in tests, 95 % intervals", "Accuracy", traces, layout)
    ]


def split_agent(name: str, agents: Sequence[str]) -> tuple[str, str]:
    """Take an agent's name out of a metric's: ``prover.loss`` → (``loss``, ``prover``)."""
    for agent in agents:
        pattern = re.compile(rf"(^|[._/\- ]){re.escape(agent)}($|[._/\- ])")
        if pattern.search(name):
            base = pattern.sub(lambda match: match[1] if match[2] else "", name, count=1)
            return base.strip("._/- ") or name, agent
    return name, ""


def family_of(name: str) -> str:
    """Return what kind of metric a name stands for."""
    for family, pattern in FAMILIES:
        if pattern.search(name.lower()):
            return family
    return OTHER


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the centred moving mean; at the ends over what there is, NaN left out."""
    half = window // 2
    result = []
    for place in range(len(values)):
        near = [v for v in values[max(0, place - half) : place + half + 1] if not math.isnan(v)]
        result.append(math.fsum(near) / len(near) if near else math.nan)
    return result


def thin(series: Series) -> Series:
    """Average neighbours until at most ``MAX_POINTS`` are left."""
    xs, ys = series
    step = math.ceil(len(xs) / MAX_POINTS)
    if step <= 1:
        return series
    chunks = [slice(start, start + step) for start in range(0, len(xs), step)]
    return [xs[chunk][-1] for chunk in chunks], [
        math.fsum(ys[chunk]) / len(ys[chunk]) for chunk in chunks
    ]


def _series_by_name(arm: Arm, stage_prefix: str) -> dict[str, Series]:
    """Collect a curve for each metric, sorted by iteration; ``pretrain-verifier/loss`` likewise."""
    curves: dict[str, Series] = defaultdict(lambda: ([], []))
    for point in sorted(arm.points, key=lambda point: point.iteration):
        if not point.stage.startswith(stage_prefix):
            continue
        detail = point.stage.removeprefix(stage_prefix).strip("-_:/ ")
        for name, value in point.values.items():
            xs, ys = curves[f"{detail}/{name}" if detail else name]
            xs.append(point.iteration)
            ys.append(value)
    return curves


def _curve_figure(
    identifier: str,
    base: str,
    curves: dict[tuple[int, str], Series],
    arms: Sequence[Arm],
    agents: Sequence[str],
    x_title: str,
) -> Figure:
    traces: list[dict[str, Any]] = []
    several = len({place for place, _ in curves}) > 1
    for (place, agent), series in curves.items():
        number = agents.index(agent)
        label = " · ".join(part for part in (arms[place].label if several else "", agent) if part)
        color = place if several else max(0, number - ("" in agents))
        dash = DASHES[max(0, number - ("" in agents)) % len(DASHES)] if several else "solid"
        traces += _curve_traces(series, label or base, color, dash)
    layout: dict[str, Any] = {"xaxis": {"title": {"text": x_title}}, "yaxis": {}}
    layout["showlegend"] = sum("name" in trace for trace in traces) > 1
    family = family_of(base)
    if family == "Accuracy":
        # a curve that is nought throughout would get an axis down to −100 %
        layout["yaxis"] = {"tickformat": ".0%", "minallowed": -0.02, "maxallowed": 1.02}
    return Figure(identifier, _readable(base), family, traces, layout)


def _curve_traces(series: Series, label: str, color: int, dash: str) -> list[dict[str, Any]]:
    """Draw a curve; a long one is drawn faintly, with its moving mean over it."""
    xs, ys = thin(series)
    line = {
        "type": "scatter",
        "mode": "lines" if len(xs) > 1 else "markers",
        "name": label,
        "x": xs,
        "y": rounded(ys),
        "line": {"dash": dash, "width": 2},
        "meta": {"color": color},
    }
    if len(xs) < SMOOTH_FROM:
        return [line]
    window = max(5, len(xs) // 25)
    faint = {key: value for key, value in line.items() if key != "name"} | {
        "line": {"width": 1},
        "opacity": 0.28,
        "showlegend": False,
        "hoverinfo": "skip",
    }
    return [faint, line | {"y": rounded(smooth(ys, window))}]


def _tested_trace(
    tests: Sequence[PackedTranscripts], end: int, place: int, label: str
) -> dict[str, Any]:
    found = [(end if t.iteration is None else t.iteration, t.accuracy) for t in tests]
    points = [(x, estimate) for x, estimate in found if estimate is not None]
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
        "meta": {"color": place},
    }


def error_bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Draw intervals; what is no number leaves a gap."""
    return {
        "type": "data",
        "symmetric": False,
        "array": rounded([estimate.high - estimate.value for estimate in estimates]),
        "arrayminus": rounded([estimate.value - estimate.low for estimate in estimates]),
        "thickness": 1.6,
        "width": 4,
    }


def _group_trace(
    rows: Sequence[GroupRow], place: int, label: str, num_labels: int
) -> dict[str, Any] | None:
    cells = [(k, cell) for k, row in enumerate(rows) if (cell := row.cells[place]) is not None]
    if not cells:
        return None
    shift = (place - (num_labels - 1) / 2) * min(0.16, 0.6 / num_labels)
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
        "meta": {"color": place},
    }


def chance_line() -> dict[str, Any]:
    """Mark what guessing reaches."""
    line = {"dash": "dot", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.5, "y1": 0.5, "line": line}


def rounded(values: Sequence[float]) -> list[float | None]:
    """Keep five digits; what is no number leaves a gap."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _readable(name: str) -> str:
    text = name.replace("_", " ").replace("/", " / ").strip()
    return text[:1].upper() + text[1:]
