"""A comparison as Markdown, and in words: what its numbers are, and what they cannot say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.parameters.test_groups import TestGroups
from ratchet.reports.comparison.cells import (
    chance,
    group_heading,
    interval,
    is_different,
    number,
    position,
)
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.comparison.shown import learning_table, learning_title, pair_table
from ratchet.reports.labels import ranges
from ratchet.reports.shown_table import ShownTable
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.power import MAX_RUNS

FEW_SEEDS = 5
MAX_VERDICTS = 3
MUCH_EARLIER = 0.98
"""Runs whose end differs less, as tokens always do, are not spoken of."""


def to_markdown(comparison: Comparison, picture: str | None = None, *, heading: bool = True) -> str:
    """Write a comparison as GitHub's Markdown, its picture's path relative to the text."""
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
        parts.append(f"## The commands that make it again\n```\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def reading_notes(comparison: Comparison) -> list[str]:
    """Return what the numbers are, and what they can't say."""
    options = comparison.options
    level = f"{100 * options.level:g} %"
    notes = [
        f"Intervals are at {level}, by {options.num_resamples:,} stratified bootstrap resamples of"
        f" the seeds ({options.method}). They say how much other seeds would change a number; the"
        " test data are the same for all, and other test data would change it too.",
        "IQM is the interquartile mean: the mean of the middle half of the runs. The optimality gap"
        " is how far the mean stays below 1.",
    ]
    if len(comparison.grouping.groups) > 1:
        notes.append(
            "P(row > column) is the probability that a run of the row is better than one of the"
            " column, ties counting half; in bold where its interval excludes 50 %. Each interval"
            f" is at {level} by itself: of many pairs some exclude 50 % by chance."
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
            f"One seed ({', '.join(group.label for group in single)}): no interval, and nothing can"
            " be said about other seeds."
        )
    return notes


def verdicts(comparison: Comparison, found: MetricComparison) -> list[str]:
    """Say which groups these seeds are too few to tell apart, and how many would do."""
    open_pairs = [p for p in found.pairs if p.power is not None and not p.is_told_apart]
    title = found.metric.title
    if len(open_pairs) <= MAX_VERDICTS:
        return [
            f"Too few seeds to tell {pair.first} from {pair.second} ({title}):"
            f" {_what_would_do(comparison, found, pair)}"
            for pair in open_pairs
        ]
    pair = max(open_pairs, key=lambda p: abs(p.power.difference) if p.power is not None else 0.0)
    return [
        f"Too few seeds to tell {len(open_pairs)} of {len(found.pairs)} pairs apart ({title})."
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
    """Say which groups have runs that end before others, where their curves end too."""
    return [
        f"Of {row.group.label}, {row.cut_off} of {len(row.ends)} runs go on after the first has"
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
        " each with the same data, runs of one seed are drawn together (paired by seed). p is that"
        " of a two-sided permutation test of the means; “of all pairs” is corrected for their"
        " number (Holm).",
        f"“Detected in {power}” and “seeds that would do” are of a t-test of the means: so large a"
        f" difference these seeds would show in {power} of repetitions, and so many seeds of each"
        " group would show the difference as it is here, if runs are normal with the spread of"
        " these. Both the difference and the spread are estimates from few runs: take it for a"
        " size, no promise. Seeds “do” where the interval of the difference excludes zero and the"
        " t-test tells it from none: with three or four seeds the interval alone would too often.",
    ]
    least = max((2 / 2**n for n in _numbers_of_pairs(pairs)), default=0.0)
    if least > 1 - comparison.options.level:
        notes.append(
            f"With so few pairs of runs p is never below {least:.2g}, whatever they show; the"
            " t-test, which takes them for normal, may still tell them apart."
        )
    return notes


def _numbers_of_pairs(pairs: Sequence[Pair]) -> set[int]:
    return {pair.difference.n for pair in pairs if pair.paired and pair.chance is not None}


def _notes_on_learning(comparison: Comparison) -> list[str]:
    if not comparison.learning:
        return []
    return [
        "Learning curves are interquartile means over runs; the band is its interval at each"
        " position by itself. A position is what training had spent when the value was measured,"
        " tests not counted. A curve ends where the first of its runs does.",
        "The mean over a range is the area under a run's curve over its length, between the"
        " positions that all runs of all groups cover. Unless given, the value to reach is what"
        " the group that ends lowest ends at. Runs that have not reached it when they end count as"
        " censored, and the position is by when half of all runs are there (Kaplan–Meier).",
    ]


def _introduction(comparison: Comparison) -> str:
    grouping = comparison.grouping
    differing = ", ".join(f"`{path}`" for path in grouping.paths) or "nothing but the seed"
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


def _shown(shown: ShownTable) -> str:
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
    """Write a table of Markdown; the first column stands left, the others right."""
    head = [_line(columns), _line(["---", *["---:"] * (len(columns) - 1)])]
    return "\n".join([*head, *(_line(row) for row in rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _bullets(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", *(f"- {line}" for line in lines)])


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
