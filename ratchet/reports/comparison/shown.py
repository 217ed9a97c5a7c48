"""The tables of a comparison, for terminals, notebooks, pages and programs."""

from __future__ import annotations

from ratchet.reports.comparison.cells import (
    difference,
    difference_interval,
    group_heading,
    interval,
    number,
    p_value,
    position,
    position_interval,
)
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.comparison.learning import GroupCurve, LearningComparison
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.comparison.plain_data import estimate_data, pair_data
from ratchet.reports.labels import metric_label
from ratchet.reports.shown_table import ShownTable
from ratchet.statistics.power import MAX_RUNS


def shown_tables(comparison: Comparison) -> list[ShownTable]:
    """Return the scores of each metric as a table, for terminals, notebooks and programs."""
    level = f"{100 * comparison.options.level:g} %"
    columns = (
        group_heading(comparison.grouping),
        "seeds",
        "IQM",
        f"{level} interval",
        "median",
        "mean",
    )
    return [
        ShownTable(
            found.metric.title,
            columns,
            [_shown_row(row, percent=found.metric.kind != "metric") for row in found.rows],
            [_record(found, row) for row in found.rows],
        )
        for found in comparison.of_kind("accuracy") + comparison.of_kind("metric")
    ]


def _shown_row(row: GroupScores, *, percent: bool) -> tuple[str, ...]:
    return (
        row.group.label,
        " + ".join(str(len(task)) for task in row.group.tasks),
        number(row.iqm.value, percent=percent),
        interval(row.iqm, percent=percent),
        number(row.median.value, percent=percent),
        number(row.mean.value, percent=percent),
    )


def _record(found: MetricComparison, row: GroupScores) -> dict[str, object]:
    """Return a row as plain data; what is no number is None."""
    iqm = estimate_data(row.iqm)
    return {
        "metric": found.metric.name,
        "group": row.group.label,
        "seeds": row.group.seeds,
        "iqm": iqm["value"],
        "low": iqm["low"],
        "high": iqm["high"],
        "median": row.median.value,
        "mean": row.mean.value,
    }


def pair_table(
    comparison: Comparison, found: MetricComparison, *, brief: bool = False
) -> ShownTable:
    """Return by how much each two groups differ in one metric, and how many seeds would tell.

    ``brief`` is for terminals; what is told of the rows as data is the same.
    """
    level, power = (f"{100 * x:g} %" for x in (comparison.options.level, comparison.options.power))
    percent, several = found.metric.kind != "metric", len(found.pairs) > 1
    rows = [
        {
            "pair": f"{pair.first} − {pair.second}",
            "difference of IQM": difference(pair.difference.value, percent=percent),
            f"{level} interval": difference_interval(pair.difference, percent=percent),
            "p": p_value(pair.chance),
            "p of all pairs": p_value(pair.adjusted),
            "paired by seed": "yes" if pair.paired else f"no: {pair.pairing}",
            f"detected in {power}": "–"
            if pair.power is None
            else number(pair.power.detectable, percent=percent),
            "seeds that would do": seeds_that_would_do(pair),
        }
        for pair in found.pairs
    ]
    left_out = {"p of all pairs"} if not several else set()
    if brief:
        left_out |= {"p of all pairs", "paired by seed", f"detected in {power}"}
    columns = [name for name in rows[0] if name not in left_out] if rows else []
    records = [{"metric": found.metric.name, **pair_data(pair)} for pair in found.pairs]
    return ShownTable(
        f"differences in {found.metric.title}",
        columns,
        [[row[name] for name in columns] for row in rows],
        records,
    )


def seeds_that_would_do(pair: Pair) -> str:
    """Write how many seeds of each group would tell a pair apart that these do not."""
    if pair.power is None:
        return "–"
    if pair.is_told_apart:
        return "these do"
    if pair.power.difference == 0:
        return "no difference"
    return f"> {MAX_RUNS:,}" if pair.needed is None else f"{pair.needed:,}"


def learning_table(comparison: Comparison, found: LearningComparison) -> ShownTable:
    """Return how efficiently each group learns: mean height, and when runs reach something."""
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
    return ShownTable(learning_title(found), columns, rows, records)


def learning_title(found: LearningComparison) -> str:
    """Name a learning curve and what it goes over."""
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
