"""A comparison as Markdown, with reading notes and verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from ratchet.reports.comparison.comparison import Comparison, MetricComparison, scores_table
from ratchet.reports.comparison.display_tables import (
    detectable,
    group_table,
    improvement_table,
    learning_table,
    pair_table,
)
from ratchet.reports.comparison.formatting import number, position
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.options import MIN_SEEDS
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.comparison.preregistration import preregistration_note
from ratchet.reports.comparison.runs import OWN_DATA
from ratchet.reports.comparison.training_costs import (
    NORMALIZATION,
    WARM_UP,
    positions_of,
    used_by_stage,
)
from ratchet.reports.labels import ranges, upper_first

MAX_VERDICTS = 3
MUCH_EARLIER = 0.98
"""Ends that differ less, as those in tokens always do, are not reported."""
SIMULATED = (
    "Simulated with 5, 8 and 20 seeds, also with skewed scores and rare collapses, such a test"
    " rejects a true hypothesis at 5 % in at most 7 % of cases; any of five corrected tests does in"
    " at most 7 %, and in 13 % with five unpaired seeds and very unequal spreads. The intervals of"
    " differences contain the truth in 92 to 98 %, and in 85 % with five pairs of accuracies near 1"
    " (see the guide on statistics)."
)
"""As ``benchmarks/coverage.py`` measures it; docs/guides/statistics.md has the tables."""


def to_markdown(comparison: Comparison, *pictures: str, heading: bool = True) -> str:
    """Format a comparison as GitHub Markdown with the relative paths of its figures."""
    top = [f"# {comparison.title}"] if heading else []
    return (
        "\n\n".join([*top, *main_parts(comparison, *pictures), *further_parts(comparison)]) + "\n"
    )


def main_parts(comparison: Comparison, *pictures: str) -> list[str]:
    """Return the introduction, the figures and the scores in the first metric, as Markdown."""
    title = re.sub(r"([\[\]])", r"\\\1", comparison.title)
    return [
        _introduction(comparison),
        *(f"![{title}]({picture})" for picture in pictures),
        *_scores_parts(comparison, comparison.main_metrics[0]),
    ]


def further_parts(comparison: Comparison) -> list[str]:
    """Return all that :func:`main_parts` does not contain: other tables, notes and commands."""
    first, *others = comparison.main_metrics
    parts = _difference_parts(comparison, first)
    for metric_comparison in others:
        parts += _scores_parts(comparison, metric_comparison)
        parts += _difference_parts(comparison, metric_comparison)
    for groups, test, group_comparisons in comparison.by_groups():
        explanation = "IQM of the accuracy in percent, with its interval."
        parts.append(f"## By {groups.title} ({test})\n{explanation}")
        parts.append(group_table(group_comparisons).to_markdown())
    for learning in comparison.learning:
        curves = learning_table(comparison, learning)
        unit = ", in percent" if learning.is_share else ""
        parts += [f"## {upper_first(curves.title)}{unit}", curves.to_markdown()]
        parts += curve_notes(learning)
    notes = [f"- {note}" for note in (*reading_notes(comparison), *comparison.notes)]
    parts.append("\n".join(["## How to read it", *notes]))
    if comparison.commands:
        code = "\n".join(comparison.commands)
        parts.append(f"## Reproducing\n```\n{code}\n```")
    return parts


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


def verdicts(comparison: Comparison, metric_comparison: MetricComparison) -> list[str]:
    """List the pairs that these seeds do not distinguish, with the detectable differences."""
    open_pairs = [p for p in metric_comparison.pairs if p.power is not None and not p.is_told_apart]
    title, alpha = metric_comparison.metric.title, f"{100 * (1 - comparison.options.level):.3g} %"
    percent = metric_comparison.metric.is_share
    if len(open_pairs) <= MAX_VERDICTS:
        return [
            f"Not distinguished at {alpha}: {pair.first} and {pair.second} ({title});"
            f" {_what_is_detected(comparison, [pair], percent=percent)}"
            for pair in open_pairs
        ]
    return [
        f"Not distinguished at {alpha}: {len(open_pairs)} of {len(metric_comparison.pairs)} pairs"
        f" ({title}); {_what_is_detected(comparison, open_pairs, percent=percent)}"
    ]


def _what_is_detected(comparison: Comparison, pairs: Sequence[Pair], *, percent: bool) -> str:
    """Return the true differences that the seeds of pairs detect, or that they detect none."""
    seeds = " or ".join(str(n) for n in sorted({pair.num_seeds for pair in pairs}))
    detectable_differences = sorted(
        (pair.power.detectable, detectable(pair, percent=percent))
        for pair in pairs
        if pair.power is not None and pair.can_be_told_apart and pair.power.spread
    )
    if not detectable_differences or math.isinf(detectable_differences[0][0]):
        least = min(pair.least or 0.0 for pair in pairs)
        if all(pair.power is not None and not pair.power.spread for pair in pairs):
            return f"the {seeds} seeds each have no spread."
        return f"no p-value of {seeds} seeds each is below {least:.3f}, whatever the difference."
    sizes = list(dict.fromkeys([detectable_differences[0][1], detectable_differences[-1][1]]))
    return (
        f"{seeds} seeds each detect a true difference of {' to '.join(sizes)}"
        f"{' points' if percent else ''} in {100 * comparison.options.power:g} % of cases."
    )


def curve_notes(learning: LearningComparison) -> list[str]:
    """List groups whose curves end early, or are partly those of agents with other partners."""
    ends_early = [
        f"{row.group.label}: {row.cut_off} of {len(row.ends)} runs continue after the first has"
        f" ended ({learning.axis}: {position(min(row.ends))}), where the curve ends."
        for row in learning.rows
        if row.cut_off and (min(row.ends) < MUCH_EARLIER * max(row.ends))
    ]
    return ends_early + _other_partners(learning)


def _other_partners(learning: LearningComparison) -> list[str]:
    """List groups with phases in which fixed partners replace some agents, by their last phase."""
    groups: dict[str, list[str]] = {}
    for row in learning.rows:
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
            end = max(positions_of(run, learning.axis, points))
            text = (
                f"up to {position(end)} {learning.axis} agents learn with fixed partners ({named})"
            )
            groups.setdefault(text, []).append(row.group.label)
    return [
        f"{', '.join(labels)}: {text}; this part of the curve is not that of the trained agents."
        for text, labels in groups.items()
    ]


def _kind(partner: object) -> str:
    return str(partner["kind"] if isinstance(partner, Mapping) else partner)


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
    pairs = [pair for metric_comparison in comparison.metrics for pair in metric_comparison.pairs]
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
        "A difference is that of two interquartile means. Where both groups have the same seeds,"
        " each with the same data, it is the interquartile mean of the differences of the seeds"
        " (paired by seed).",
        f"p is two-sided, of {_tests(pairs)}. It is corrected for {against} in one metric, not"
        " for the number of metrics (step-down min-P of Westfall and Young). Pairs are"
        f" distinguished if the corrected p is at most {alpha}.",
        SIMULATED,
        f"“Detectable in {power}” is the smallest true difference that these seeds find in {power}"
        f" of cases at {alpha} divided by the number of pairs, or at the smallest p if that is"
        " larger. It follows from the spread of the runs, assumed normal, not from the observed"
        " difference, and is as rough as this spread.",
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


def _tests(pairs: Sequence[Pair]) -> str:
    """Describe the tests of pairs and their permutations."""
    kinds = {
        "Wilcoxon's signed ranks, the two runs of a seed swapped: the sum of two seeds'"
        " differences is as likely positive as negative": True,
        "the test of Brunner and Munzel, labels of runs permuted: a run of either group is as"
        " likely better as worse": False,
    }
    tested = [pair for pair in pairs if pair.chance is not None]
    how = [text for text, paired in kinds.items() if any(p.paired == paired for p in tested)]
    counts = sorted({(pair.num_permutations, pair.is_exact) for pair in tested})
    used = [
        f"{'all ' if exact else ''}{count:,}{'' if exact else ' sampled'}"
        for count, exact in counts
    ]
    return f"{', or of '.join(how)} ({', '.join(used)} permutations)"


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


def _scores_parts(comparison: Comparison, metric_comparison: MetricComparison) -> list[str]:
    metric = metric_comparison.metric
    unit = ", in percent" if metric.is_share else ""
    less = "; less is better" if metric.less_is_better else ""
    scores = scores_table(comparison, metric_comparison)
    parts = [f"## {upper_first(metric.title)}{unit}{less}\n{scores.to_markdown()}"]
    if lines := comparison.lines_of(metric_comparison):
        known = [f"{line.label} {number(line.value)}" for line in lines]
        parts.append(f"Known values, drawn as lines: {'; '.join(known)}.")
    return parts


def _difference_parts(comparison: Comparison, metric_comparison: MetricComparison) -> list[str]:
    metric, parts = metric_comparison.metric, []
    unit = ", in percent" if metric.is_share else ""
    if len(metric_comparison.rows) > 1 and not comparison.options.pairs:
        improvements = improvement_table(metric_comparison)
        parts += [improvements.title, improvements.to_markdown()]
    if metric_comparison.pairs:
        pairs = pair_table(comparison, metric_comparison)
        parts += [f"Differences{unit}", pairs.to_markdown()]
        parts += verdicts(comparison, metric_comparison)
    return parts


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
