"""A comparison as Markdown, for people, and as plain data, for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.parameters.test_groups import TestGroups
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.labels import ranges
from ratchet.reports.shown_table import ShownTable
from ratchet.statistics.estimate import Estimate

FEW_SEEDS = 5


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
    parts.append(_bullets("How to read it", [*reading_notes(comparison), *comparison.notes]))
    if comparison.commands:
        code = "\n".join(comparison.commands)
        parts.append(f"## The commands that make it again\n```\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def to_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as data for JSON; what is no number is None."""
    grouping, options = comparison.grouping, comparison.options
    return {
        "schema_version": 1,
        "title": comparison.title,
        "commands": list(comparison.commands),
        "level": options.level,
        "method": options.method,
        "num_resamples": options.num_resamples,
        "seed": options.seed,
        "differing": list(grouping.paths),
        "tasks": list(grouping.tasks),
        "groups": [
            {
                "label": group.label,
                "values": dict(group.values),
                "seeds": group.seeds,
                "runs": [run.label for run in group.runs],
            }
            for group in grouping.groups
        ],
        "metrics": [_metric_data(found) for found in comparison.metrics],
        "notes": list(comparison.notes),
    }


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


def interval(estimate: Estimate, *, percent: bool = True) -> str:
    """Write an interval's ends, or that there is none."""
    if math.isnan(estimate.low):
        return "one seed"
    ends = (estimate.low, estimate.high)
    return ", ".join(number(end, percent=percent) for end in ends).join("[]")


def number(value: float, *, percent: bool = True) -> str:
    """Write a score: in percent if it is a share."""
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def chance(estimate: Estimate | None) -> str:
    """Write a probability of improvement; nothing for a group with itself."""
    if estimate is None:
        return "–"
    text = f"{100 * estimate.value:.0f}"
    if math.isnan(estimate.low):
        return text
    return f"{text} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def is_different(estimate: Estimate | None) -> bool:
    """Return whether the interval of a probability of improvement excludes one half."""
    return estimate is not None and (estimate.low > 0.5 or estimate.high < 0.5)


def group_heading(comparison: Comparison) -> str:
    """Name what tells groups apart."""
    paths = comparison.grouping.paths
    return paths[0] if len(paths) == 1 else "group"


def shown_tables(comparison: Comparison) -> list[ShownTable]:
    """Return the scores of each metric as a table, for terminals, notebooks and programs."""
    level = f"{100 * comparison.options.level:g} %"
    columns = (group_heading(comparison), "seeds", "IQM", f"{level} interval", "median", "mean")
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
    iqm = _estimate_data(row.iqm)
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
    columns = [group_heading(comparison), "seeds", "IQM", level, "median", "mean"]
    if percent:
        columns.append("optimality gap")
    rows = [_row(row, percent=percent) for row in found.rows]
    parts = [f"## {title[:1].upper()}{title[1:]}{unit}\n{table(columns, rows)}"]
    labels = [row.group.label for row in found.rows]
    if len(labels) > 1:
        matrix = [
            [f"**{one}**", *(_bold(found.improvement(one, two)) for two in labels)]
            for one in labels
        ]
        parts.append(f"P(row > column), in percent\n\n{table(['', *labels], matrix)}")
    return parts


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


def _metric_data(found: MetricComparison) -> dict[str, Any]:
    return {
        "name": found.metric.name,
        "title": found.metric.title,
        "kind": found.metric.kind,
        "test": found.metric.test,
        "groups": [
            {
                "label": row.group.label,
                "scores": [list(task) for task in row.scores],
                "seeds": [[run.seed for run in task] for task in row.group.tasks],
                "iqm": _estimate_data(row.iqm),
                "median": _estimate_data(row.median),
                "mean": _estimate_data(row.mean),
                "optimality_gap": None if row.gap is None else _estimate_data(row.gap),
            }
            for row in found.rows
        ],
        "probability_of_improvement": [
            {"first": each.first, "second": each.second, **_estimate_data(each.probability)}
            for each in found.improvements
        ],
    }


def _estimate_data(estimate: Estimate) -> Mapping[str, Any]:
    def plain(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "value": plain(estimate.value),
        "low": plain(estimate.low),
        "high": plain(estimate.high),
        "n": estimate.n,
    }
