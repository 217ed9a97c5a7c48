"""A comparison as Markdown, with reading notes and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.parameters.base import TestGroups
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.comparison.display_tables import learning_table, learning_title, pair_table
from ratchet.reports.comparison.formatting import (
    chance,
    group_heading,
    interval,
    is_different,
    number,
    position,
)
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.labels import ranges
from ratchet.statistics.differences import MAX_RUNS
from ratchet.statistics.estimate import Estimate

FEW_SEEDS = 5
MAX_VERDICTS = 3
MUCH_EARLIER = 0.98
"""Ends that differ less, as those in tokens always do, are not reported."""


def to_markdown(comparison: Comparison, picture: str | None = None, *, heading: bool = True) -> str:
    """Format a comparison as GitHub Markdown with the relative path of its figure."""
    parts = [f"# {comparison.title}"] if heading else []
    parts.append(_introduction(comparison))
    if picture is not None:
        parts.append(f"![{comparison.title}]({picture})")
    for found in comparison.of_kind("accuracy") + comparison.of_kind("metric"):
        parts += _metric_parts(comparison, found)
    for groups, test, found_by_group in comparison.by_groups():
        parts.append(_group_part(groups, test, found_by_group))
    for found_curve in comparison.learning:
        parts.append(_learning_part(comparison, found_curve))
    parts.append(_bullets("How to read it", [*reading_notes(comparison), *comparison.notes]))
    if comparison.commands:
        code = "\n".join(comparison.commands)
        parts.append(f"## Reproducing\n```\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def reading_notes(comparison: Comparison) -> list[str]:
    """Return notes on the meaning and limitations of the numbers."""
    options = comparison.options
    level = f"{100 * options.level:g} %"
    notes = [
        f"Intervals are at {level}, by {options.num_resamples:,} stratified bootstrap resamples of"
        f" the seeds ({options.method}). They cover the variation over seeds; the test data are"
        " the same for all runs, and other test data would add variation.",
        "IQM is the interquartile mean: the mean of the middle half of the runs. The optimality gap"
        " is the mean shortfall below 1.",
    ]
    if len(comparison.grouping.groups) > 1:
        notes.append(
            "P(row > column) is the probability that a run of the row is better than one of the"
            " column, ties counting half; in bold where its interval excludes 50 %. Each interval"
            f" is at {level} individually: of many pairs some exclude 50 % by chance."
        )
    notes += _notes_on_differences(comparison) + _notes_on_learning(comparison)
    few = [g for g in comparison.grouping.groups if 1 < min(map(len, g.tasks)) < FEW_SEEDS]
    if few:
        notes.append(
            f"Fewer than {FEW_SEEDS} seeds ({', '.join(g.label for g in few)}): these intervals are"
            " too narrow."
        )
    single = [g for g in comparison.grouping.groups if min(map(len, g.tasks)) == 1]
    if single:
        notes.append(
            f"One seed ({', '.join(group.label for group in single)}): no interval, and no"
            " conclusion about other seeds."
        )
    return notes


def verdicts(comparison: Comparison, found: MetricComparison) -> list[str]:
    """List the pairs that these seeds do not distinguish, with the required number of seeds."""
    open_pairs = [p for p in found.pairs if p.power is not None and not p.is_told_apart]
    title = found.metric.title
    if len(open_pairs) <= MAX_VERDICTS:
        return [
            f"Too few seeds to distinguish {pair.first} from {pair.second} ({title}):"
            f" {_what_would_do(comparison, found, pair)}"
            for pair in open_pairs
        ]
    pair = max(open_pairs, key=lambda p: abs(p.power.difference) if p.power is not None else 0.0)
    return [
        f"Too few seeds to distinguish {len(open_pairs)} of {len(found.pairs)} pairs ({title})."
        f" {pair.first} and {pair.second} differ most of these:"
        f" {_what_would_do(comparison, found, pair)}"
    ]


def _what_would_do(comparison: Comparison, found: MetricComparison, pair: Pair) -> str:
    assert pair.power is not None
    percent = found.metric.kind != "metric"
    unit = " points" if percent else ""
    detected, seen = (
        f"{number(size, percent=percent)}{unit}"
        for size in (pair.power.detectable, abs(pair.power.difference))
    )
    if pair.power.difference == 0:
        return f"their means are equal; {pair.num_seeds} each detect a difference of {detected}."
    needed = f"more than {MAX_RUNS:,}" if pair.needed is None else f"{pair.needed:,}"
    return (
        f"{pair.num_seeds} each detect a difference of {detected} in"
        f" {100 * comparison.options.power:g} % of cases; for the {seen} seen here {needed} each"
        " would do."
    )


def ragged_notes(found: LearningComparison) -> list[str]:
    """List groups with runs that end before others, where their curves end."""
    return [
        f"{row.group.label}: {row.cut_off} of {len(row.ends)} runs continue after the first has"
        f" ended ({found.axis}: {position(min(row.ends))}), where the curve ends."
        for row in found.rows
        if row.cut_off and (min(row.ends) < MUCH_EARLIER * max(row.ends))
    ]


def _notes_on_differences(comparison: Comparison) -> list[str]:
    pairs = [pair for found in comparison.metrics for pair in found.pairs]
    if not pairs:
        return []
    power = f"{100 * comparison.options.power:g} %"
    notes = [
        "A profile is the share of runs that are better than each threshold; its band is pointwise."
        " The higher curve is better, and curves that cross have no order.",
        "A difference is that of two interquartile means. Where both groups have the same seeds,"
        " each with the same data, runs of one seed are resampled together (paired by seed). p is"
        " that of a two-sided permutation test of the means; “of all pairs” is corrected for their"
        " number (Holm).",
        f"“Detected in {power}” and “seeds that would do” refer to a t-test of the means: the"
        f" difference that these seeds show in {power} of repetitions, and the number of seeds per"
        " group that would show the observed difference, if runs are normal with the spread of"
        " these. Difference and spread are estimates from few runs, so both are rough. Seeds “do”"
        " if the interval of the difference excludes zero and the t-test is significant: with three"
        " or four seeds the interval alone excludes zero too often.",
    ]
    least = max((2 / 2**n for n in _numbers_of_pairs(pairs)), default=0.0)
    if least > 1 - comparison.options.level:
        notes.append(
            f"With so few pairs of runs p is at least {least:.2g}; the t-test, which assumes"
            " normal runs, may still distinguish them."
        )
    return notes


def _numbers_of_pairs(pairs: Sequence[Pair]) -> set[int]:
    return {pair.difference.n for pair in pairs if pair.paired and pair.chance is not None}


def _notes_on_learning(comparison: Comparison) -> list[str]:
    if not comparison.learning:
        return []
    return [
        "Learning curves are interquartile means over runs; the band is its pointwise"
        " interval. A position is the amount that training had used when the value was measured,"
        " without tests. A curve ends where the first of its runs ends.",
        "The mean over a range is the area under a run's curve over its length, between the"
        " positions that all runs of all groups cover. The default threshold is the lowest"
        " last value of all groups. Runs that end without reaching it are censored, and the"
        " position is the median at which runs reach it (Kaplan–Meier).",
    ]


def _introduction(comparison: Comparison) -> str:
    grouping = comparison.grouping
    differing = ", ".join(f"`{path}`" for path in grouping.paths) or "only the seed"
    seeds = {tuple(group.seeds) for group in grouping.groups}
    text = f"{len(comparison.runs)} runs that differ in {differing}"
    if len(seeds) == 1:
        text += (
            f"; {_plural(len(grouping.groups), 'group')} with the seeds {ranges(next(iter(seeds)))}"
        )
    else:
        text += f"; {_plural(len(grouping.groups), 'group')}, not all with the same seeds"
    if len(grouping.tasks) > 1:
        text += f"; tasks: {', '.join(grouping.tasks)}"
    return f"{text}."


def _metric_parts(comparison: Comparison, found: MetricComparison) -> list[str]:
    percent = found.metric.kind != "metric"
    level = f"{100 * comparison.options.level:g} % interval"
    title = found.metric.title
    unit = ", in percent" if percent else ""
    columns = [group_heading(comparison.grouping), "seeds", "IQM", level, "median", "mean"]
    if percent:
        columns.append("optimality gap")
    rows = [_row(row, percent=percent) for row in found.rows]
    parts = [f"## {title[:1].upper()}{title[1:]}{unit}\n{table(columns, rows)}"]
    if found.metric.kind == "accuracy" and comparison.lines:
        known = [f"{line.label} {number(line.value)}" for line in comparison.lines]
        parts.append(f"Known values, drawn as lines: {'; '.join(known)}.")
    labels = [row.group.label for row in found.rows]
    if len(labels) > 1:
        matrix = [
            [f"**{one}**", *(_bold(found.improvement(one, two)) for two in labels)]
            for one in labels
        ]
        parts.append(f"P(row > column), in percent\n\n{table(['', *labels], matrix)}")
        parts.append(f"Differences{unit}\n\n{_shown(pair_table(comparison, found))}")
        parts += verdicts(comparison, found)
    return parts


def _shown(shown: DisplayTable) -> str:
    return table(shown.columns, shown.rows)


def _learning_part(comparison: Comparison, found: LearningComparison) -> str:
    unit = ", in percent" if found.is_share else ""
    title = learning_title(found)
    return "\n\n".join(
        [
            f"## {title[:1].upper()}{title[1:]}{unit}",
            _shown(learning_table(comparison, found)),
            *ragged_notes(found),
        ]
    )


def _row(row: GroupScores, *, percent: bool) -> list[str]:
    cells = [
        row.group.label,
        " + ".join(str(len(task)) for task in row.group.tasks),
        number(row.iqm.value, percent=percent),
        interval(row.iqm, percent=percent),
        number(row.median.value, percent=percent),
        number(row.mean.value, percent=percent),
    ]
    return cells if row.gap is None else [*cells, number(row.gap.value, percent=percent)]


def _group_part(groups: TestGroups, test: str, found: Sequence[MetricComparison]) -> str:
    labels = [row.group.label for row in found[0].rows]
    rows = [
        [each.metric.title, *(f"{number(r.iqm.value)} {_ends(r.iqm)}".strip() for r in each.rows)]
        for each in found
    ]
    return (
        f"## By {groups.title} ({test})\n"
        f"IQM of the accuracy in percent, with its interval.\n\n{table(['', *labels], rows)}"
    )


def _ends(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.low) else interval(estimate)


def _bold(estimate: Estimate | None) -> str:
    return f"**{chance(estimate)}**" if is_different(estimate) else chance(estimate)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; the first column left-aligned, the others right-aligned."""
    head = [_line(columns), _line(["---", *["---:"] * (len(columns) - 1)])]
    return "\n".join([*head, *(_line(row) for row in rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _bullets(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", *(f"- {line}" for line in lines)])


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
