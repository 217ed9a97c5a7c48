"""Curves of a report: a plot for each metric, informative ones first."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ratchet.reports.content import Arm
from ratchet.reports.labels import metric_label
from ratchet.reports.plots import Figure, counted_axis, rounded
from ratchet.tracking.manifest import phase_ranges
from ratchet.tracking.stage_kinds import StageKind

MAX_POINTS = 500
SMOOTH_FROM = 40
SMOOTHING_WINDOW = 11
"""Points of a moving mean; independent of the curve's length, so that a longer run looks alike."""
DASHES = ("solid", "dash", "dot", "dashdot")
FAMILIES = (
    ("Accuracy", re.compile(r"accura|correct|exact_match")),
    ("Reward", re.compile(r"reward|return")),
    ("KL divergence", re.compile(r"(^|[^a-z])(approx_)?kl([^a-z]|$)")),
    ("Entropy", re.compile(r"^(?!.*loss).*entropy")),
    ("Length", re.compile(r"response_length")),
    ("Loss", re.compile(r"loss|objective")),
)
UNITS = {"KL divergence": "nats", "Entropy": "nats", "Length": "tokens"}
OTHER = "Other"
_SUCCESS = ("Accuracy", "Reward")  # often constant at 1
_OFTEN_SMALL = ("KL divergence", "Entropy", "Loss")  # ticks as 1e-8: plotly's default is 10n
Series = tuple[list[int], list[float]]
Curves = dict[tuple[int, str], Series]
"""A metric's curves by index of the arm and name of the agent, empty for all agents."""
_SPREAD = re.compile(r"(^|[._/])(std|worst|largest)_|_datapoint_")
"""Statistics of a metric other than its mean over episodes: shown on demand."""
_ENDS = re.compile(r"/(min|max|std)$")
_ROUNDING = 1e-10  # smaller values are rounding errors of 0
_EQUAL = 1e-6  # of the largest value: some are summed in single precision
_SAME = 1e-3  # of the largest value; stored metrics are rounded


def curve_figures(arms: Sequence[Arm], kind: StageKind) -> list[Figure]:
    """Draw the metrics of all stages of a kind, families in order.

    Agents and arms share a metric's plot. Colours distinguish arms and dashes agents; with one
    arm, colours distinguish agents. Constant and duplicate metrics come last.
    """
    grouped: dict[str, Curves] = defaultdict(dict)
    for arm_index, arm in enumerate(arms):
        for name, series in _series_by_name(arm, kind).items():
            base, agent = split_agent(name, arm.agent_names())
            grouped[base][arm_index, agent] = series
    agents = sorted({agent for curves in grouped.values() for _, agent in curves})
    orders = {base: _plot_order(base, grouped) for base in grouped}
    bases = sorted(grouped, key=lambda base: orders[base].sort_key)
    figures = []
    for number, base in enumerate(bases):
        drawn = _curve_figure(f"{kind.name}-{number}", base, grouped[base], arms, agents, kind.axis)
        order = orders[base]
        layout = drawn.layout
        if kind.curves != "pretraining":  # phases divide training
            curves_of = sorted({arm_index for arm_index, _ in grouped[base]})
            layout = {**layout, **phase_marks([arms[arm_index] for arm_index in curves_of])}
        note = "; ".join(filter(None, [order.note, drawn.note]))
        figures.append(replace(drawn, layout=layout, note=note, folded=order.folded))
    return figures


def by_family(figures: Iterable[Figure]) -> list[tuple[str, list[Figure]]]:
    """Group figures by their family, families in the order of :data:`FAMILIES`."""
    names = [name for name, _ in FAMILIES] + [OTHER]
    families = [(name, [figure for figure in figures if figure.family == name]) for name in names]
    return [(name, members) for name, members in families if members]


def phase_marks(arms: Sequence[Arm]) -> dict[str, Any]:
    """Mark the starts of phases with their names; empty if arms have different phases.

    The names include the arm's if others have no phases. An iteration's metrics are drawn at its
    number, so a phase starts half a step before its first.
    """
    ranges = {arm.label: spans for arm in arms if (spans := phase_ranges(arm.hyper_params))}
    if not ranges:
        return {}
    spans, *others = ranges.values()
    if any(other != spans for other in others):
        return {}
    prefix = f"{', '.join(ranges)}: " if len(ranges) < len(arms) else ""
    line = {"dash": "dot", "width": 1}
    top = {"yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    return {
        "shapes": [
            {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line}
            | {"x0": start - 0.5, "x1": start - 0.5}
            for _, start, _ in spans[1:]
        ],
        "annotations": [
            {"x": max(start - 0.5, 0), "text": prefix + name, "font": {"size": 11}, **top}
            for name, start, _ in spans
        ],
        "margin": {"l": 52, "r": 12, "t": 22, "b": 44},
    }


@dataclass(frozen=True)
class _PlotOrder:
    """Position of a metric's plot: its sort key, and whether it is ``folded``."""

    sort_key: tuple[bool, bool, int, bool, str]
    folded: bool
    note: str


def _plot_order(base: str, grouped: Mapping[str, Curves]) -> _PlotOrder:
    """Rank a metric; only means of the main families that vary, or that measure success, show."""
    family, is_spread = family_of(base), _SPREAD.search(base) is not None
    constant = is_constant(grouped[base].values()) or is_nothing(grouped[base].values())
    success = {name: curves for name, curves in grouped.items() if family_of(name) in _SUCCESS}
    are_points = all(len(xs) <= 1 for xs, _ in grouped[base].values())
    if base in success:
        twin = _same_as(base, success)
    elif constant or are_points:  # these often equal unrelated metrics
        twin = ""
    else:
        twin = _same_as(base, grouped) or _summed(base, grouped)
    folded = family == OTHER or bool(twin) or is_spread or (constant and base not in success)
    folded |= _ENDS.search(base) is not None
    families = [name for name, _ in FAMILIES] + [OTHER]
    sort_key = (bool(twin), constant, families.index(family), is_spread, base)
    return _PlotOrder(sort_key, folded, twin or ("never changes" if constant else ""))


def is_constant(curves: Iterable[Series]) -> bool:
    """Return whether all curves with several values are constant."""
    values = [[y for y in ys if math.isfinite(y)] for _, ys in curves]
    return any(len(ys) > 1 for ys in values) and all(len(set(ys)) <= 1 for ys in values)


def is_nothing(curves: Iterable[Series]) -> bool:
    """Return whether curves are 0 up to rounding."""
    values = [y for _, ys in curves for y in ys if math.isfinite(y)]
    return 0 < max(map(abs, values), default=0.0) < _ROUNDING


def _same_as(base: str, grouped: Mapping[str, Curves]) -> str:
    """Return a note naming a metric of a shorter name with equal curves; else an empty string."""
    for other in sorted(grouped, key=lambda name: (len(name), name)):
        if other == base:
            break
        if _are_same(grouped[other], grouped[base]):
            return f"the same as “{metric_label(other)}”"
    return ""


def _are_same(one: Curves, other: Curves) -> bool:
    if one.keys() != other.keys() or any(one[key][0] != other[key][0] for key in one):
        return False
    pairs = [pair for key in one for pair in zip(one[key][1], other[key][1], strict=True)]
    largest = max((abs(y) for pair in pairs for y in pair if math.isfinite(y)), default=0.0)
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= _EQUAL * largest
        for a, b in pairs
    )


def _summed(base: str, grouped: Mapping[str, Curves]) -> str:
    """Return a note naming the metric whose multiple, summed over agents, is this loss; else ""."""
    base_curves = grouped[base]
    if family_of(base) != "Loss" or any(agent for _, agent in base_curves):
        return ""
    for other, curves in grouped.items():
        sums = {arm_index: _sum_over_agents(curves, arm_index) for arm_index, _ in base_curves}
        factor = _common_factor(
            [(base_curves[arm_index, ""], sums[arm_index]) for arm_index in sums]
        )
        if other != base and factor is not None:
            times = "" if factor == 1 else f"{factor:.3g} × "
            return f"{times}the sum of “{metric_label(other)}”"
    return ""


def _sum_over_agents(curves: Curves, arm_index: int) -> dict[int, float]:
    total: dict[int, float] = defaultdict(float)
    for (arm, agent), (xs, ys) in curves.items():
        if arm == arm_index and agent:
            for x, y in zip(xs, ys, strict=True):
                total[x] += y
    return total


def _common_factor(pairs: Sequence[tuple[Series, Mapping[int, float]]]) -> float | None:
    """Return the factor between sums and curves; None if there is no common one."""
    if any(set(series[0]) != set(sums) for series, sums in pairs):
        return None
    points = [(y, sums[x]) for series, sums in pairs for x, y in zip(*series, strict=True)]
    points = [point for point in points if any(map(math.isfinite, point))]
    scale = max((abs(number) for point in points for number in point), default=0.0)
    if not 0 < scale < math.inf or any(map(math.isnan, (n for point in points for n in point))):
        return None
    points = [(y / scale, total / scale) for y, total in points]  # their squares do not overflow
    largest = max(abs(y) for y, _ in points)
    square = math.fsum(total**2 for _, total in points)
    if not (largest > 0 and square > 0):
        return None
    fitted = math.fsum(y * total for y, total in points) / square
    factors = [1.0, fitted] if len({y for y, _ in points}) > 2 else [1.0]
    for factor in factors:
        if all(abs(y - factor * total) <= _SAME * largest for y, total in points):
            return factor
    return None


def split_agent(name: str, agents: Sequence[str]) -> tuple[str, str]:
    """Split an agent's name from a metric's: ``prover.loss`` → (``loss``, ``prover``)."""
    for agent in agents:
        pattern = re.compile(rf"(^|[._/\- ]){re.escape(agent)}($|[._/\- ])")
        if pattern.search(name):
            base = pattern.sub(lambda match: match[1] if match[2] else "", name, count=1)
            return base.strip("._/- ") or name, agent
    return name, ""


def family_of(name: str) -> str:
    """Return the family of a metric name."""
    for family, pattern in FAMILIES:
        if pattern.search(name.lower()):
            return family
    return OTHER


def mean(values: Sequence[float]) -> float:
    """Return the mean of finite values; it cannot overflow."""
    return math.fsum(value / len(values) for value in values)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the centred moving mean of finite values, truncated at the ends; NaN without any."""
    half = window // 2
    return [
        _of_finite(mean, values[max(0, index - half) : index + half + 1])
        for index in range(len(values))
    ]


def thin(series: Series, merge: Callable[[Sequence[float]], float] = mean) -> Series:
    """Merge the finite values of neighbours so that at most ``MAX_POINTS`` points remain.

    Each is at the middle of its neighbours; NaN if none of them is finite.
    """
    xs, ys = series
    step = _step(series)
    chunks = [slice(start, start + step) for start in range(0, len(xs), step)]
    middles = [xs[chunk][len(xs[chunk]) // 2] for chunk in chunks]
    return middles, [_of_finite(merge, ys[chunk]) for chunk in chunks]


def _step(series: Series) -> int:
    """Return the number of values of a series that are drawn as one point."""
    return max(1, math.ceil(len(series[0]) / MAX_POINTS))


def _of_finite(merge: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    finite = list(filter(math.isfinite, values))
    return merge(finite) if finite else math.nan


def _series_by_name(arm: Arm, kind: StageKind) -> dict[str, Series]:
    """Collect a curve for each metric, sorted by iteration; ``pretrain-verifier/loss`` likewise."""
    curves: dict[str, Series] = defaultdict(lambda: ([], []))
    for point in sorted(arm.points, key=lambda point: point.iteration):
        stage, _, detail = point.stage.partition("-")
        if stage != kind.name:
            continue
        for name, value in point.values.items():
            xs, ys = curves[f"{detail}/{name}" if detail else name]
            xs.append(point.iteration)
            ys.append(value)
    return curves


def _curve_figure(
    identifier: str,
    base: str,
    curves: Curves,
    arms: Sequence[Arm],
    agents: Sequence[str],
    x_title: str,
) -> Figure:
    traces: list[dict[str, Any]] = []
    several = len({arm_index for arm_index, _ in curves}) > 1
    for (arm_index, agent), series in curves.items():
        number = agents.index(agent)
        label = " · ".join(
            part for part in (arms[arm_index].label if several else "", agent) if part
        )
        color = arm_index if several else max(0, number - ("" in agents))
        dash = DASHES[max(0, number - ("" in agents)) % len(DASHES)] if several else "solid"
        traces += _curve_traces(series, label or base, color, dash)
    iterations = [x for xs, _ in curves.values() for x in xs]
    layout: dict[str, Any] = {"xaxis": counted_axis(x_title, iterations), "yaxis": {}}
    layout["showlegend"] = sum("name" in trace for trace in traces) > 1
    family = family_of(base)
    if family in UNITS:
        layout["yaxis"] = {"title": {"text": UNITS[family]}}
    if family in _OFTEN_SMALL:
        layout["yaxis"]["exponentformat"] = "e"
    if family == "Accuracy":
        # an all-zero curve would get an axis down to −100 %
        layout["yaxis"] = {"tickformat": ".3~%", "minallowed": -0.02, "maxallowed": 1.02}
    if any("yaxis" in trace for trace in traces):
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], "visible": False}
    note = _reading_note(list(curves.values()))
    return Figure(identifier, metric_label(base), family, traces, layout, note)


def _reading_note(curves: Sequence[Series]) -> str:
    """Explain how curves are drawn: averages, extremes, smoothing, values that are left out."""
    parts = []
    if any(_is_smoothed(series) for series in curves):
        parts.append(f"thick line: moving mean of {SMOOTHING_WINDOW} values")
    steps = sorted({_step(series) for series in curves} - {1})
    if steps:
        number = " or ".join(map(str, steps))
        parts.append(f"each point is the mean of {number} values, band: their lowest and highest")
    values = [y for _, ys in curves for y in ys]
    skipped = [str(y) for y in values if not math.isfinite(y)]
    if skipped:
        kinds = ", ".join(sorted(set(skipped)))
        parts.append(f"×: {len(skipped):,} of {len(values):,} values are {kinds} and left out")
    return "; ".join(parts)


def _is_smoothed(series: Series) -> bool:
    """Return whether a curve is drawn with its moving mean: long, but not already averaged more."""
    return len(series[0]) >= SMOOTH_FROM and _step(series) < SMOOTHING_WINDOW


def _curve_traces(series: Series, label: str, color: int, dash: str) -> list[dict[str, Any]]:
    """Draw a curve: a long one as its moving mean, before its values or their extremes."""
    xs, ys = series
    smoothed = (xs, smooth(ys, SMOOTHING_WINDOW)) if _is_smoothed(series) else series
    middles, means = thin(smoothed)
    line = {
        "type": "scatter",
        "mode": "lines" if len(xs) > 1 else "markers",
        "name": label,
        "x": middles,
        "y": rounded(means),
        "line": {"dash": dash, "width": 2},
        "meta": {"color": color, "of": label},
    }
    background = {"showlegend": False, "hoverinfo": "skip", "mode": "lines", "type": "scatter"}
    background |= {"x": middles, "meta": {"color": color, "of": label}}
    traces = [line, *_left_out(series, label, color)]
    if _step(series) > 1:
        low, high = rounded(thin(series, min)[1]), rounded(thin(series, max)[1])
        edge = background | {"line": {"width": 0}}
        return [edge | {"y": low}, edge | {"y": high, "fill": "tonexty"}, *traces]
    if _is_smoothed(series):
        return [background | {"y": rounded(ys), "line": {"width": 1}, "opacity": 0.28}, *traces]
    return traces


def _left_out(series: Series, label: str, color: int) -> list[dict[str, Any]]:
    """Mark the values that are not finite at the bottom of the plot."""
    skipped = [(x, y) for x, y in zip(*series, strict=True) if not math.isfinite(y)]
    if not skipped:
        return []
    skipped = skipped[:: math.ceil(len(skipped) / MAX_POINTS)]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x for x, _ in skipped],
            "y": [0.02] * len(skipped),
            "yaxis": "y2",
            "marker": {"symbol": "x-thin-open", "size": 7},
            "text": [f"{label}: {y} at {x}" for x, y in skipped],
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": False,
            "meta": {"color": color, "of": label},
        }
    ]
