"""A comparison as Markdown, with reading notes and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ratchet.parameters.base import TestGroups
from ratchet.reports.comparison.comparison import Comparison, GroupScores, MetricComparison
from ratchet.reports.comparison.display_tables import (
    detectable,
    learning_table,
    learning_title,
    pair_table,
)
from ratchet.reports.comparison.formatting import (
    chance,
    group_heading,
    interval,
    is_different,
    number,
    position,
)
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.options import MIN_SEEDS
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.comparison.preregistration import preregistration_note
from ratchet.reports.comparison.runs import OWN_DATA, Group
from ratchet.reports.comparison.training_costs import (
    NORMALIZATION,
    WARM_UP,
    Used,
    positions_of,
    used_by_stage,
    used_in_training,
)
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.labels import ranges
from ratchet.statistics.estimate import Estimate

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


def used_per_run(group: Group) -> Used:
    """Return what training used, averaged over the runs of a group."""
    return sum(map(used_in_training, group.runs), Used()) / len(group.runs)


def reading_notes(comparison: Comparison) -> list[str]:
    """Return notes on the meaning and limitations of the numbers."""
    options = comparison.options
    level = f"{100 * options.level:g} %"
    over_data = "and" if OWN_DATA in comparison.notes else "and not"
    note = preregistration_note(comparison)
    notes = [
        *([note] if note else []),
        f"Intervals are at {level}, by {options.num_resamples:,} stratified bootstrap resamples of"
        f" the seeds ({options.method}). They cover the variation over training seeds,"
        f" {over_data} that over data sets.",
        "IQM is the interquartile mean: the mean of the middle half of the runs. The optimality gap"
        " is the mean shortfall below 1.",
    ]
    if len(comparison.grouping.groups) > 1:
        notes.append(_note_on_improvements(comparison, level))
    notes += _notes_on_differences(comparison) + _notes_on_learning(comparison)
    notes += _notes_on_costs(comparison)
    few = [g for g in comparison.grouping.groups if min(map(len, g.tasks)) < MIN_SEEDS]
    if few:
        notes.append(
            f"Fewer than {MIN_SEEDS} seeds ({', '.join(g.label for g in few)}): no intervals are"
            " given, since they would be too narrow. Points give directions only."
        )
    return notes


def verdicts(comparison: Comparison, found: MetricComparison) -> list[str]:
    """List the pairs that these seeds do not distinguish, with what the seeds detect."""
    open_pairs = [p for p in found.pairs if p.power is not None and not p.is_told_apart]
    title, alpha = found.metric.title, f"{100 * (1 - comparison.options.level):.3g} %"
    percent = found.metric.is_share
    if len(open_pairs) <= MAX_VERDICTS:
        return [
            f"Not distinguished at {alpha}: {pair.first} and {pair.second} ({title});"
            f" {_what_is_detected(comparison, [pair], percent=percent)}"
            for pair in open_pairs
        ]
    return [
        f"Not distinguished at {alpha}: {len(open_pairs)} of {len(found.pairs)} pairs ({title});"
        f" {_what_is_detected(comparison, open_pairs, percent=percent)}"
    ]


def _what_is_detected(comparison: Comparison, pairs: Sequence[Pair], *, percent: bool) -> str:
    """Return the true differences that the seeds of pairs detect, or that they detect none."""
    seeds = " or ".join(str(n) for n in sorted({pair.num_seeds for pair in pairs}))
    found = sorted(
        (pair.power.detectable, detectable(pair, percent=percent))
        for pair in pairs
        if pair.power is not None and pair.can_be_told_apart and pair.power.spread
    )
    if not found or math.isinf(found[0][0]):
        least = min(pair.least or 0.0 for pair in pairs)
        if all(pair.power is not None and not pair.power.spread for pair in pairs):
            return f"the {seeds} seeds each have no spread."
        return f"no p-value of {seeds} seeds each is below {least:.3f}, whatever the difference."
    sizes = list(dict.fromkeys([found[0][1], found[-1][1]]))
    return (
        f"{seeds} seeds each detect a true difference of {' to '.join(sizes)}"
        f"{' points' if percent else ''} in {100 * comparison.options.power:g} % of cases, in a"
        " single test."
    )


def curve_notes(found: LearningComparison) -> list[str]:
    """List groups whose curves end early, or are partly those of agents with other partners."""
    return [*_ragged(found), *_other_partners(found)]


def _other_partners(found: LearningComparison) -> list[str]:
    """List groups with phases in which fixed partners replace some agents, by their last phase."""
    groups: dict[str, list[str]] = {}
    for row in found.rows:
        run, last = row.group.runs[0], 0
        iterations, named = 0, ""
        for phase in run.hyper_params.get("phases") or ():
            iterations += int(phase["num_iterations"])
            partners = phase.get("partners") or {}
            if partners:
                last = iterations
                named = ", ".join(f"{name}: {_kind(each)}" for name, each in partners.items())
        points = [p for p in run.points if p.stage == "train" and p.iteration < last]
        if points:
            end = max(positions_of(run, found.axis, points))
            text = f"up to {position(end)} {found.axis} agents learn with fixed partners ({named})"
            groups.setdefault(text, []).append(row.group.label)
    return [
        f"{', '.join(labels)}: {text}; this part of the curve is not that of the trained agents."
        for text, labels in groups.items()
    ]


def _kind(partner: object) -> str:
    return str(partner["kind"] if isinstance(partner, Mapping) else partner)


def _ragged(found: LearningComparison) -> list[str]:
    return [
        f"{row.group.label}: {row.cut_off} of {len(row.ends)} runs continue after the first has"
        f" ended ({found.axis}: {position(min(row.ends))}), where the curve ends."
        for row in found.rows
        if row.cut_off and (min(row.ends) < MUCH_EARLIER * max(row.ends))
    ]


def _note_on_improvements(comparison: Comparison, level: str) -> str:
    bold = "; in bold where its interval excludes 50 %"
    name, first, second = "P(row better than column)", "row", "column"
    if comparison.options.pairs:
        bold, name, first, second = "", "P(first better)", "first group", "second"
    return (
        f"{name} is the probability that a run of the {first} is better than one of the {second},"
        f" ties counting half{bold}. Each interval is at {level} individually: of many pairs some"
        " exclude 50 % by chance."
    )


def _notes_on_differences(comparison: Comparison) -> list[str]:
    pairs = [pair for found in comparison.metrics for pair in found.pairs]
    if not pairs:
        return []
    options = comparison.options
    power, alpha = f"{100 * options.power:g} %", f"{100 * (1 - options.level):.3g} %"
    bases = " and ".join(options.baselines)
    against = f"all groups against {bases}" if bases else "all pairs"
    if options.pairs:
        against = f"the {len(options.pairs)} named pairs"
    notes = [
        "A profile is the share of runs that are better than each threshold; its band is pointwise."
        " The higher curve is better, and curves that cross have no order.",
        "A difference is that of two means, and p, the corrected p and the detectable difference"
        " refer to it. Where both groups have the same seeds, each with the same data,"
        " runs of one seed are resampled together (paired by seed).",
        f"p is two-sided, by permutation: {_ways(pairs)}. It is corrected for {against} in one"
        " metric, not for the number of metrics (max-T of Westfall and Young, step-down). Pairs"
        f" are distinguished if the corrected p is at most {alpha}. The test is exact if the runs"
        " of both groups are exchangeable, and approximate for equal means with unequal spreads.",
        f"“Detectable in {power}” is the smallest true difference that a single test at {alpha}"
        f" of these seeds finds in {power} of cases. It follows from the spread of the runs, not"
        " from the observed difference, and is as rough as this spread.",
    ]
    tested = [pair for pair in pairs if pair.chance is not None]
    unable = [pair.least for pair in tested if not pair.can_be_told_apart and pair.least]
    if unable:
        notes.append(
            f"{len(unable)} of {len(tested)} tests cannot reach {alpha} with these seeds, whatever"
            f" the difference: their smallest attainable p is {min(unable):.3f} to"
            f" {max(unable):.3f} (in parentheses in the tables)."
            if min(unable) < max(unable)
            else f"{len(unable)} of {len(tested)} tests cannot reach {alpha} with these seeds,"
            f" whatever the difference: their smallest attainable p is {max(unable):.3f}."
        )
    return notes


def _ways(pairs: Sequence[Pair]) -> str:
    """Describe the permutations of pairs."""
    kinds = {"the two runs of a seed are swapped": True, "labels of runs are permuted": False}
    tested = [pair for pair in pairs if pair.chance is not None]
    how = [text for text, paired in kinds.items() if any(p.paired == paired for p in tested)]
    counts = sorted({(pair.num_permutations, pair.is_exact) for pair in tested})
    used = [
        f"{'all ' if exact else ''}{count:,}{'' if exact else ' sampled'}"
        for count, exact in counts
    ]
    return f"{' or '.join(how)} ({', '.join(used)} permutations)"


def _notes_on_learning(comparison: Comparison) -> list[str]:
    if not comparison.learning:
        return []
    return [
        "Learning curves are interquartile means over runs; the band is its pointwise"
        " interval. A position is the amount that training had used when the value was measured,"
        " imitation and normalisation included, without tests. A curve ends where the first of its"
        " runs ends.",
        "The mean over a range is the area under a run's curve over its length, between the"
        " positions that all runs of all groups cover. The default threshold is the lowest"
        " last value of all groups. Runs that end without reaching it are censored, and the"
        " position is the median at which runs reach it (Kaplan–Meier).",
    ]


def _notes_on_costs(comparison: Comparison) -> list[str]:
    """Explain what training used, with the stages before training."""
    before: dict[str, list[str]] = {}
    for group in comparison.grouping.groups:
        stages = used_by_stage(group.runs[0])
        parts = [
            f"{stage} {used}"
            for stage, used in stages.items()
            if stage.startswith((NORMALIZATION, WARM_UP, "pretrain-", "imitate-"))
        ]
        if parts:
            before.setdefault("; ".join(parts), []).append(group.label)
    text = (
        "“Used in training” is the mean over the runs, of all stages, also before training, and"
        " of no tests. Labels are episodes rewarded by the label of their datapoint, and"
        " examples of supervised learning in each epoch."
    )
    lists = [f"{', '.join(labels)}: {parts}" for parts, labels in before.items()]
    return [f"{text} Before training: {'. '.join(lists)}." if lists else text]


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
    percent = found.metric.is_share
    level = f"{100 * comparison.options.level:g} % interval"
    title = found.metric.title
    unit = ", in percent" if percent else ""
    columns = [group_heading(comparison.grouping), "seeds", "IQM", level, "median", "mean"]
    if found.metric.kind != "metric":
        columns.append("optimality gap")
    rows = [_row(row, percent=percent) for row in found.rows]
    if found is comparison.metrics[0]:
        columns.append("used in training")
        rows = [
            [*cells, str(used_per_run(row.group))]
            for cells, row in zip(rows, found.rows, strict=True)
        ]
    less = "; less is better" if found.metric.less_is_better else ""
    parts = [f"## {title[:1].upper()}{title[1:]}{unit}{less}\n{table(columns, rows)}"]
    if lines := comparison.lines_of(found):
        known = [f"{line.label} {number(line.value)}" for line in lines]
        parts.append(f"Known values, drawn as lines: {'; '.join(known)}.")
    labels = [row.group.label for row in found.rows]
    if len(labels) > 1 and not comparison.options.pairs:
        matrix = [
            [f"**{one}**", *(_bold(found.improvement(one, two)) for two in labels)]
            for one in labels
        ]
        parts.append(f"P(row better than column), in percent\n\n{table(['', *labels], matrix)}")
    if found.pairs:
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
            *curve_notes(found),
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
