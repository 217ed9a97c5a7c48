"""Tables of a comparison for terminals, notebooks, pages and programs."""

from __future__ import annotations

import math

from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.formatting import (
    chance,
    difference,
    difference_interval,
    estimate_data,
    group_heading,
    interval,
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
from ratchet.statistics.power import MAX_RUNS


def pair_table(
    comparison: Comparison, found: MetricComparison, *, brief: bool = False
) -> DisplayTable:
    """Return the differences of pairs of groups in one metric, with the detectable difference.

    ``brief`` omits columns for terminals; the records are the same.
    """
    options, percent = comparison.options, found.metric.is_share
    level, power = (f"{100 * x:g} %" for x in (options.level, options.power))
    rows = []
    for pair in found.pairs:
        row = {
            "pair": f"{pair.first} − {pair.second}",
            "difference of means": difference(pair.difference.value, percent=percent),
            f"{level} interval": difference_interval(pair.difference, percent=percent),
            "p": p_value(pair.chance, None if pair.can_be_told_apart else pair.least),
            "corrected p": p_value(pair.adjusted),
            "P(first better), %": chance(found.improvement(pair.first, pair.second)),
            "paired by seed": "yes" if pair.paired else f"no: {pair.pairing}",
            f"detectable in {power}": detectable(pair, percent=percent),
        }
        if pair.power is not None and pair.power.effect is not None:
            heading = f"seeds for {number(pair.power.effect, percent=percent)}"
            row[heading] = _seeds_for_effect(pair)
        rows.append(row)
    left_out = {"corrected p"} if len(found.pairs) == 1 else set()
    if not options.pairs:  # they have a table of all pairs
        left_out |= {"P(first better), %"}
    if brief:
        left_out |= {"paired by seed"}
    columns = [name for name in rows[0] if name not in left_out] if rows else []
    records = [{"metric": found.metric.name, **pair_data(pair)} for pair in found.pairs]
    return DisplayTable(
        f"differences in {found.metric.title}",
        columns,
        [[row.get(name, "–") for name in columns] for row in rows],
        records,
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


def learning_table(comparison: Comparison, found: LearningComparison) -> DisplayTable:
    """Return each group's learning efficiency: mean height and time to thresholds."""
    level = f"{100 * comparison.options.level:g} %"
    columns = [group_heading(comparison.grouping), "seeds", "last IQM"]
    if found.start is not None and found.end is not None:
        between = f"{position(found.start)} to {position(found.end)} {found.axis}"
        columns += [f"mean over {between}", f"{level} interval"]
    for threshold in found.thresholds:
        columns += [
            f"reach {number(threshold, percent=found.is_share)}",
            f"{found.axis} until half do",
            f"{level} interval",
        ]
    rows = [_learning_row(row, percent=found.is_share) for row in found.rows]
    records = [_learning_record(found, row) for row in found.rows]
    return DisplayTable(learning_title(found), columns, rows, records)


def learning_title(found: LearningComparison) -> str:
    """Return the title of a learning curve with its x axis."""
    stage, _, name = found.metric.partition("/")
    return f"learning: {metric_label(name)} ({stage}) over {found.axis}"


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


def _learning_record(found: LearningComparison, row: GroupCurve) -> dict[str, object]:
    return {
        "metric": found.metric,
        "axis": found.axis,
        "group": row.group.label,
        "seeds": row.group.seeds,
        "start": found.start,
        "end": found.end,
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
