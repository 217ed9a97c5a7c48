"""Preregistration of a compared sweep: its groups as defaults, and deviations from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC

from ratchet.reports.comparison.comparison import CheckedPreregistration, Comparison
from ratchet.reports.comparison.options import Options, planned_pairs
from ratchet.reports.comparison.pairs import compared_labels
from ratchet.reports.comparison.runs import MAIN_TEST
from ratchet.reports.labels import ranges
from ratchet.tracking.preregistration import ACCURACY, Preregistration, PreregistrationRecord

MAX_NAMED = 5
"""Maximum number of pairs named in the note."""


def with_preregistered_groups(
    options: Options, record: PreregistrationRecord | None, labels: Sequence[str]
) -> Options:
    """Return options with the preregistered baselines or pairs that are groups, unless given."""
    if record is None or options.baselines or options.pairs:
        return options
    planned = _planned(record.content)
    return replace(
        options,
        baselines=[name for name in planned.baselines if name in labels],
        pairs=[pair for pair in planned.pairs if {*pair} <= {*labels}],
    )


def check_preregistration(
    comparison: Comparison, record: PreregistrationRecord, run_ids: Iterable[str]
) -> CheckedPreregistration:
    """List how a comparison of these runs differs from the preregistration of their sweep."""
    content = record.content
    differences = [
        *_differences_of_seeds(comparison, content),
        *_differences_of_groups(comparison, content),
    ]
    names = {
        ACCURACY if each.metric.name == MAIN_TEST else each.metric.name.replace(" ", "/")
        for each in comparison.metrics
    }
    differences += [f"no metric {name}" for name in content.metrics if name not in names]
    if record.digest != content.digest(run_ids):
        differences.append("parameters or members changed after the preregistration")
    return CheckedPreregistration(record, differences)


def preregistration_note(comparison: Comparison) -> str:
    """Describe the preregistration and the differences from it; empty without one."""
    if comparison.preregistered is None:
        return ""
    record, differences = comparison.preregistered.record, comparison.preregistered.differences
    content = record.content
    at = f" at commit {record.code.short}" if record.code.commit else ""
    plan = "; ".join(
        [
            ", ".join(content.metrics),
            f"seeds {ranges(content.seeds)}",
            _compared(comparison, _planned(content)),
        ]
    )
    text = (
        f"Preregistered on {record.registered.astimezone(UTC):%Y-%m-%d %H:%M} UTC{at}, before the"
        f" first run (digest {record.digest}): {plan}"
    )
    if differences:
        text += f", and this comparison differs: {'; '.join(differences)}"
    hypothesis = " ".join(content.hypothesis.split())
    return f"{text}. Hypothesis: {hypothesis}" if hypothesis else f"{text}."


def _planned(content: Preregistration) -> Options:
    return Options(baselines=content.baselines, pairs=planned_pairs(content.pairs))


def _differences_of_seeds(comparison: Comparison, content: Preregistration) -> list[str]:
    """List groups with other seeds, by their seeds."""
    by_seeds: dict[str, list[str]] = {}
    for group in comparison.grouping.groups:
        if group.seeds != content.seeds:
            by_seeds.setdefault(ranges(group.seeds), []).append(group.label)
    return [f"seeds {seeds} of {', '.join(labels)}" for seeds, labels in by_seeds.items()]


def _differences_of_groups(comparison: Comparison, content: Preregistration) -> list[str]:
    """List missing groups, and the pairs that are compared if they are others."""
    labels = [group.label for group in comparison.grouping.groups]
    planned = _planned(content)
    named = [*planned.baselines, *(name for pair in planned.pairs for name in pair)]
    missing = [f"no group {name}" for name in dict.fromkeys(named) if name not in labels]
    pairs, others = (
        {frozenset(pair) for pair in compared_labels(labels, each)}
        for each in (planned, comparison.options)
    )
    return missing + [_compared(comparison, comparison.options)] * (pairs != others)


def _compared(comparison: Comparison, options: Options) -> str:
    """Describe the compared pairs of groups."""
    if len(options.pairs) > MAX_NAMED:
        return f"{len(options.pairs)} named pairs"
    if options.pairs:
        return ", ".join(f"{first} vs {second}" for first, second in options.pairs)
    each = "arm" if comparison.grouping.is_by_arm else "group"
    return (
        f"each {each} with {' and '.join(options.baselines)}" if options.baselines else "all pairs"
    )
