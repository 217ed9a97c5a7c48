"""Figure of a comparison for documents: a deterministic SVG."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.display_tables import learning_title
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.options import ReferenceValue
from ratchet.reports.labels import upper_first

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

    main = comparison.main_metrics
    grouped = comparison.by_groups()
    labels = [group.label for group in comparison.grouping.groups]
    with rc_context(_STYLE):
        curves = comparison.learning
        panels = [main[k : k + PANELS] for k in range(0, len(main), PANELS)]
        num_rows = len(panels) + len(grouped) + len(curves)
        heights = [1.3 + 0.4 * len(labels)] * len(panels) + [2.8] * (num_rows - len(panels))
        figure = _new_figure(sum(heights))
        rows = figure.add_gridspec(max(1, num_rows), 1, height_ratios=heights or None)
        columns = min(PANELS, len(main))
        for k, several in enumerate(panels):
            panel_grid = rows[k].subgridspec(1, columns)
            for column, metric_comparison in enumerate(several):
                axes = figure.add_subplot(panel_grid[0, column])
                axes.tick_params(labelleft=column == 0)
                lines = comparison.lines_of(metric_comparison)
                _draw_groups(axes, metric_comparison, lines, labels, TITLE_CHARS // columns)
        drawn = [figure.add_subplot(rows[k]) for k in range(len(panels), num_rows)]
        for axes, curve in zip(drawn[len(grouped) :], curves, strict=True):
            _draw_learning(axes, curve, comparison.lines, with_legend=not grouped)
        for axes, (groups, test, mine) in zip(drawn[: len(grouped)], grouped, strict=True):
            axes.set_title(f"By {groups.title} ({test})", loc="left")
            _draw_by_group(axes, mine, with_legend=(groups, test, mine) == grouped[-1])
        return _to_svg(figure)


def draw_profiles(comparison: Comparison) -> str:
    """Draw the share of each group's runs that are better than each score, by main metric.

    Returns SVG; equal comparisons give equal figures.
    """
    from matplotlib import rc_context

    main = comparison.main_metrics
    labels = [group.label for group in comparison.grouping.groups]
    columns = min(PANELS, len(main))
    num_rows = math.ceil(len(main) / columns)
    with rc_context(_STYLE):
        figure = _new_figure(2.8 * num_rows)
        grid = figure.add_gridspec(num_rows, columns)
        for k, metric_comparison in enumerate(main):
            axes = figure.add_subplot(grid[k // columns, k % columns])
            _draw_profile(axes, metric_comparison, labels, TITLE_CHARS // columns)
        lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        drawn_labels = [label for label in labels if label in lines]
        figure.legend(
            [lines[label] for label in drawn_labels],
            drawn_labels,
            ncols=_legend_columns(drawn_labels),
            loc="outside lower left",
            frameon=False,
        )
        return _to_svg(figure)


def _new_figure(height: float) -> Figure:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    return figure


def _to_svg(figure: Figure) -> str:
    """Format as SVG with rounded positions of the axes: the solver's last digits vary."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(x, 5) for x in axes.get_position().bounds])  # type: ignore[arg-type]
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "Ratchet"})
    return buffer.getvalue()


def _draw_groups(
    axes: Axes,
    metric_comparison: MetricComparison,
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
    scale = 100.0 if metric_comparison.metric.is_share else 1.0
    for row in metric_comparison.rows:
        group_index = labels.index(row.group.label)
        color, _, marker = look_of(group_index)
        scores = [scale * score for task in row.scores for score in task]
        axes.scatter(
            scores, [group_index + 0.22] * len(scores), s=14, facecolors="none", edgecolors=color
        )
        if not math.isnan(row.iqm.low):
            axes.plot(
                [scale * row.iqm.low, scale * row.iqm.high],
                [group_index, group_index],
                color=color,
                lw=2,
            )
        axes.scatter(
            [scale * row.iqm.value], [group_index], s=42, color=color, marker=marker, zorder=3
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    title = upper_first(metric_comparison.metric.title) + (
        "; less is better" if metric_comparison.metric.less_is_better else ""
    )
    pad = 6 + LABEL_HEIGHT * len(lines)
    axes.set_title(textwrap.fill(title, title_chars), loc="left", pad=pad)
    meaning = "IQM and interval; circles are seeds" + (" (%)" if scale > 1 else "")
    axes.set_xlabel(textwrap.fill(meaning, title_chars))
    axes.tick_params(length=0)


def _draw_learning(
    axes: Axes, learning: LearningComparison, lines: Sequence[ReferenceValue], *, with_legend: bool
) -> None:
    scale = 100.0 if learning.is_share else 1.0
    for group_index, row in enumerate(learning.rows):
        (color, line_style, _), band = look_of(group_index), row.band
        values = [scale * y for y in band.values]
        axes.plot(band.positions, values, line_style, color=color, label=row.group.label)
        lows, highs = ([scale * y for y in ends] for ends in (band.lows, band.highs))
        axes.fill_between(band.positions, lows, highs, color=color, alpha=0.15, lw=0)  # NaN: none
    for line in lines if learning.is_accuracy else ():
        axes.axhline(100 * line.value, color=_GREY, lw=0.9, ls="--")
    axes.set_title(upper_first(learning_title(learning)), loc="left")
    axes.set_xlabel(learning.axis)
    axes.set_ylabel("IQM and band" + (" (%)" if scale > 1 else ""))
    if with_legend:
        _legend_below(axes, [row.group.label for row in learning.rows], -0.25)
    axes.tick_params(length=0)


def _draw_profile(
    axes: Axes, metric_comparison: MetricComparison, labels: Sequence[str], title_chars: int
) -> None:
    metric = metric_comparison.metric
    scale = 100.0 if metric.is_share else 1.0
    side = "below" if metric.less_is_better else "above"
    step: Literal["pre", "post"] = "post" if metric.less_is_better else "pre"
    for row in metric_comparison.rows:
        (color, line_style, _), band = look_of(labels.index(row.group.label)), row.profile
        if band is not None:
            scores = [scale * x for x in band.positions]
            shares, lows, highs = (
                [100 * y for y in ends] for ends in (band.values, band.lows, band.highs)
            )
            axes.step(scores, shares, line_style, color=color, label=row.group.label, where=step)
            axes.fill_between(scores, lows, highs, step=step, color=color, alpha=0.15, lw=0)
    title = f"Profile: {metric.title}"
    axes.set_title(textwrap.fill(title, title_chars), loc="left")
    axes.set_xlabel("score τ" + (" (%)" if scale > 1 else ""))
    axes.set_ylabel(f"runs {side} τ (%)")
    axes.set_ylim(-3, 103)
    axes.tick_params(length=0)


def _draw_by_group(
    axes: Axes, group_comparisons: Sequence[MetricComparison], *, with_legend: bool
) -> None:
    labels = [row.group.label for row in group_comparisons[0].rows]
    width = min(0.13, 0.75 / len(labels))
    for group_index, label in enumerate(labels):
        color, _, marker = look_of(group_index)
        for k, each in enumerate(group_comparisons):
            estimate = each.rows[group_index].iqm
            x = k + (group_index - (len(labels) - 1) / 2) * width
            if not math.isnan(estimate.low):
                axes.plot([x, x], [100 * estimate.low, 100 * estimate.high], color=color, lw=1.6)
            named = label if not k else ""
            axes.scatter([x], [100 * estimate.value], s=24, color=color, marker=marker, label=named)
    axes.axhline(50, color=_GREY, lw=0.8, ls=":")
    axes.set_xticks(
        range(len(group_comparisons)), [each.metric.title for each in group_comparisons]
    )
    axes.set_ylim(-3, 103)
    axes.set_ylabel("accuracy (%)")
    if with_legend:
        _legend_below(axes, labels, -0.12)
    axes.tick_params(length=0)


def look_of(group_index: int) -> tuple[str, str, str]:
    """Return the colour, line style and marker of a group, which differ from all others'."""
    line_style, marker = ROUNDS[group_index // len(COLORS) % len(ROUNDS)]
    return COLORS[group_index % len(COLORS)], line_style, marker


def _legend_below(axes: Axes, labels: Sequence[str], height: float) -> None:
    axes.legend(
        ncols=_legend_columns(labels), loc="upper left", bbox_to_anchor=(0, height), frameon=False
    )


def _legend_columns(labels: Sequence[str]) -> int:
    return max(1, min(len(labels), LEGEND_CHARS // (8 + max(map(len, labels)))))
