"""Figure of a comparison for documents: a deterministic SVG."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.display_tables import learning_title
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.options import ReferenceValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (
    *("#2457d6", "#d1700a", "#0c8a63", "#a936b8", "#c3303b"),
    *("#0f83a0", "#7a6a12", "#59606e", "#e2739a", "#7fb135"),
)
ROUNDS = (("-", "o"), ("--", "s"), (":", "^"))
"""Line style and marker of the groups with each colour, from the first to the third."""
LEGEND_CHARS = 110
"""Characters per legend line; a marker with its gaps counts as eight."""
TITLE_CHARS = 90
"""Characters per line of adjacent titles."""
LABEL_HEIGHT = 9
"""Points per label of a reference line."""
PANELS = 3
"""Maximum number of metrics in a row."""
_GREY = "#8a8d96"
_STYLE: dict[Any, Any] = {  # matplotlib types the keys as a union of literals
    "svg.hashsalt": "ratchet",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8d96",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ebecef",
}


def draw_svg(comparison: Comparison) -> str:
    """Draw every group's interquartile mean, interval and seeds; accuracies by group; learning.

    Returns SVG; equal comparisons give equal figures.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    main = comparison.of_kind("accuracy") + comparison.of_kind("metric")
    grouped = comparison.by_groups()
    labels = [group.label for group in comparison.grouping.groups]
    with rc_context(_STYLE):
        curves = comparison.learning
        panels = [main[k : k + PANELS] for k in range(0, len(main), PANELS)]
        num_rows = len(panels) + len(grouped) + len(curves)
        heights = [1.3 + 0.4 * len(labels)] * len(panels) + [2.8] * (num_rows - len(panels))
        figure = Figure(figsize=(9.0, sum(heights)), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        rows = figure.add_gridspec(max(1, num_rows), 1, height_ratios=heights or None)
        columns = min(PANELS, len(main))
        for k, several in enumerate(panels):
            places = rows[k].subgridspec(1, columns)
            for place, found in enumerate(several):
                axes = figure.add_subplot(places[0, place])
                axes.tick_params(labelleft=place == 0)
                lines = comparison.lines_of(found)
                _draw_groups(axes, found, lines, labels, TITLE_CHARS // columns)
        drawn = [figure.add_subplot(rows[k]) for k in range(len(panels), num_rows)]
        for axes, curve in zip(drawn[len(grouped) :], curves, strict=True):
            _draw_learning(axes, curve, comparison.lines, with_legend=not grouped)
        for axes, (groups, test, mine) in zip(drawn[: len(grouped)], grouped, strict=True):
            axes.set_title(f"By {groups.title} ({test})", loc="left")
            _draw_by_group(axes, mine, with_legend=(groups, test, mine) == grouped[-1])
        _fix_layout(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "Ratchet"})
    return buffer.getvalue()


def _fix_layout(figure: Figure) -> None:
    """Lay the axes out and round their positions: the solver's last digits vary."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(x, 5) for x in axes.get_position().bounds])  # type: ignore[arg-type]


def _draw_groups(
    axes: Axes,
    found: MetricComparison,
    lines: Sequence[ReferenceValue],
    labels: Sequence[str],
    title_chars: int,
) -> None:
    """Draw a metric's groups with the same rows and colours in all metrics."""
    for k, line in enumerate(lines):  # labels are stacked above the axes, away from the data
        axes.axvline(100 * line.value, color=_GREY, lw=0.9, ls="--")
        axes.annotate(
            f"{line.label} {100 * line.value:.1f}",
            (100 * line.value, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + LABEL_HEIGHT * (len(lines) - 1 - k)),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color=_GREY,
        )
    scale = 100.0 if found.metric.is_share else 1.0
    for row in found.rows:
        place = labels.index(row.group.label)
        color, _, marker = look_of(place)
        scores = [scale * score for task in row.scores for score in task]
        axes.scatter(
            scores, [place + 0.22] * len(scores), s=14, facecolors="none", edgecolors=color
        )
        if not math.isnan(row.iqm.low):
            axes.plot(
                [scale * row.iqm.low, scale * row.iqm.high], [place, place], color=color, lw=2
            )
        axes.scatter([scale * row.iqm.value], [place], s=42, color=color, marker=marker, zorder=3)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    title = _upper(found.metric.title) + ("; less is better" if found.metric.less_is_better else "")
    pad = 6 + LABEL_HEIGHT * len(lines)
    axes.set_title(textwrap.fill(title, title_chars), loc="left", pad=pad)
    meaning = "IQM and interval; circles are seeds" + (" (%)" if scale > 1 else "")
    axes.set_xlabel(textwrap.fill(meaning, title_chars))
    axes.tick_params(length=0)


def _draw_learning(
    axes: Axes, found: LearningComparison, lines: Sequence[ReferenceValue], *, with_legend: bool
) -> None:
    scale = 100.0 if found.is_share else 1.0
    for place, row in enumerate(found.rows):
        (color, line_style, _), band = look_of(place), row.band
        values = [scale * y for y in band.values]
        axes.plot(band.positions, values, line_style, color=color, label=row.group.label)
        lows, highs = ([scale * y for y in ends] for ends in (band.lows, band.highs))
        axes.fill_between(band.positions, lows, highs, color=color, alpha=0.15, lw=0)  # NaN: none
    for line in lines if found.is_accuracy else ():
        axes.axhline(100 * line.value, color=_GREY, lw=0.9, ls="--")
    axes.set_title(_upper(learning_title(found)), loc="left")
    axes.set_xlabel(found.axis)
    axes.set_ylabel("IQM and band" + (" (%)" if scale > 1 else ""))
    if with_legend:
        _legend_below(axes, [row.group.label for row in found.rows], -0.25)
    axes.tick_params(length=0)


def _draw_by_group(axes: Axes, found: Sequence[MetricComparison], *, with_legend: bool) -> None:
    labels = [row.group.label for row in found[0].rows]
    width = min(0.13, 0.75 / len(labels))
    for place, label in enumerate(labels):
        color, _, marker = look_of(place)
        for k, each in enumerate(found):
            estimate = each.rows[place].iqm
            x = k + (place - (len(labels) - 1) / 2) * width
            if not math.isnan(estimate.low):
                axes.plot([x, x], [100 * estimate.low, 100 * estimate.high], color=color, lw=1.6)
            named = label if not k else ""
            axes.scatter([x], [100 * estimate.value], s=24, color=color, marker=marker, label=named)
    axes.axhline(50, color=_GREY, lw=0.8, ls=":")
    axes.set_xticks(range(len(found)), [each.metric.title for each in found])
    axes.set_ylim(-3, 103)
    axes.set_ylabel("accuracy (%)")
    if with_legend:
        _legend_below(axes, labels, -0.12)
    axes.tick_params(length=0)


def look_of(place: int) -> tuple[str, str, str]:
    """Return the colour, line style and marker of a group, which differ from all others'."""
    line_style, marker = ROUNDS[place // len(COLORS) % len(ROUNDS)]
    return COLORS[place % len(COLORS)], line_style, marker


def _legend_below(axes: Axes, labels: Sequence[str], height: float) -> None:
    columns = max(1, min(len(labels), LEGEND_CHARS // (8 + max(map(len, labels)))))
    axes.legend(ncols=columns, loc="upper left", bbox_to_anchor=(0, height), frameon=False)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
