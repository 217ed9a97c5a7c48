"""Tables of a comparison for terminals, notebooks, pages and programs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.formatting import (
    chance,
    difference,
    estimate_data,
    group_heading,
    interval,
    is_different,
    number,
    p_value,
    pair_data,
    position,
    position_interval,
)
from ratchet.reports.comparison.learning import GroupCurve, LearningComparison
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.labels import metric_label
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.power import MAX_RUNS


def improvement_table(metric_comparison: MetricComparison) -> DisplayTable:
    """Return the probabilities that a row's group is better than a column's."""
    labels = [row.group.label for row in metric_comparison.rows]
    rows = []
    for one in labels:
        chances = [metric_comparison.improvement(one, two) for two in labels]
        rows.append([f"**{one}**", *map(_bold, chances)])
    return DisplayTable("P(row better than column), in percent", ["", *labels], rows)


def group_table(group_comparisons: Sequence[MetricComparison]) -> DisplayTable:
    """Return the accuracies on groups of datapoints, with their intervals."""
    labels = [row.group.label for row in group_comparisons[0].rows]
    rows = [
        [each.metric.title, *(_with_interval(row.iqm) for row in each.rows)]
        for each in group_comparisons
    ]
    return DisplayTable("", ["", *labels], rows)


def _bold(estimate: Estimate | None) -> str:
    return f"**{chance(estimate)}**" if is_different(estimate) else chance(estimate)


def _with_interval(estimate: Estimate) -> str:
    value = number(estimate.value)
    return value if math.isnan(estimate.low) else f"{value} {interval(estimate)}"


def pair_table(comparison: Comparison, metric_comparison: MetricComparison) -> DisplayTable:
    """Return the differences of pairs of groups in one metric, with the detectable difference."""
    options, percent = comparison.options, metric_comparison.metric.is_share
    level, power = (f"{100 * x:g} %" for x in (options.level, options.power))
    rows = []
    for pair in metric_comparison.pairs:
        row = {
            "pair": f"{pair.first} − {pair.second}",
            "IQM difference": difference(pair.difference.value, percent=percent),
            f"{level} interval": interval(pair.difference, percent=percent, form=difference),
            "p": p_value(pair.chance, None if pair.can_be_told_apart else pair.least),
            "corrected p": p_value(pair.adjusted),
            "P(first better), %": chance(metric_comparison.improvement(pair.first, pair.second)),
            "paired by seed": "yes" if pair.paired else f"no: {pair.pairing}",
            f"detectable in {power}": detectable(pair, percent=percent),
        }
        if pair.power is not None and pair.power.effect is not None:
            heading = f"seeds for {number(pair.power.effect, percent=percent)}"
            row[heading] = _seeds_for_effect(pair)
        rows.append(row)
    left_out = {"corrected p"} if len(metric_comparison.pairs) == 1 else set()
    if not options.pairs:  # they have a table of all pairs
        left_out |= {"P(first better), %"}
    records = [
        {"metric": metric_comparison.metric.name, **pair_data(pair)}
        for pair in metric_comparison.pairs
    ]
    return DisplayTable.from_mappings(
        f"differences in {metric_comparison.metric.title}",
        [{name: row[name] for name in row if name not in left_out} for row in rows],
        records,
        details=["paired by seed"],
    )


def detectable(pair: Pair, *, percent: bool) -> str:
    """Format the smallest difference that a pair's seeds detect."""
    if pair.power is None or math.isinf(pair.power.detectable):
        return "none"
    if pair.power.spread == 0:
        return "no spread"
    return number(pair.power.detectable, percent=percent)


def _seeds_for_effect(pair: Pair) -> str:
    if pair.power is None or pair.power.spread == 0:
        return "no spread"
    return f"> {MAX_RUNS:,}" if pair.power.needed is None else f"{pair.power.needed:,}"


def learning_table(comparison: Comparison, learning: LearningComparison) -> DisplayTable:
    """Return each group's learning efficiency: mean height and time to thresholds."""
    level = f"{100 * comparison.options.level:g} %"
    columns = [group_heading(comparison.grouping), "seeds", "last IQM"]
    if learning.start is not None and learning.end is not None:
        between = f"{position(learning.start)} to {position(learning.end)} {learning.axis}"
        columns += [f"mean over {between}", f"{level} interval"]
    for threshold in learning.thresholds:
        columns += [
            f"reach {number(threshold, percent=learning.is_share)}",
            f"{learning.axis} until half do",
            f"{level} interval",
        ]
    rows = [_learning_row(row, percent=learning.is_share) for row in learning.rows]
    records = [_learning_record(learning, row) for row in learning.rows]
    return DisplayTable(learning_title(learning), columns, rows, records)


def learning_title(learning: LearningComparison) -> str:
    """Return the title of a learning curve with its x axis."""
    stage, _, name = learning.metric.partition("/")
    return f"learning: {metric_label(name)} ({stage}) over {learning.axis}"


def _learning_row(row: GroupCurve, *, percent: bool) -> list[str]:
    seeds = " + ".join(str(len(task)) for task in row.group.tasks)
    cells = [row.group.label, seeds]
    cells.append(number(row.band.values[-1], percent=percent) if len(row.band) else "–")
    if row.area is not None:
        cells += [number(row.area.value, percent=percent), interval(row.area, percent=percent)]
    for each in row.reaching:
        cells.append(f"{each.num_reached} of {len(each.reached)}")
        cells += [position(each.median.value), position_interval(each.median)]
    return cells


def _learning_record(learning: LearningComparison, row: GroupCurve) -> dict[str, object]:
    return {
        "metric": learning.metric,
        "axis": learning.axis,
        "group": row.group.label,
        "seeds": row.group.seeds,
        "start": learning.start,
        "end": learning.end,
        "mean_height": None if row.area is None else dict(estimate_data(row.area)),
        "reaching": [
            {
                "threshold": each.threshold,
                "reached": each.num_reached,
                "runs": len(each.reached),
                "median": dict(estimate_data(each.median)),
            }
            for each in row.reaching
        ],
    }
