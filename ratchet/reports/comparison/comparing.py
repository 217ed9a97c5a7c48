"""``compare_runs``: build a comparison from run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ratchet.errors import DataError, ParameterError, nearest
from ratchet.reports.comparison.comparison import (
    Comparison,
    compare_groups,
    recorded_metric,
    test_metrics,
)
from ratchet.reports.comparison.learning import AxisName, compare_learning
from ratchet.reports.comparison.options import Options, ReferenceValue
from ratchet.reports.comparison.preregistration import (
    check_preregistration,
    with_preregistered_groups,
)
from ratchet.reports.comparison.runs import (
    ComparedRun,
    Grouping,
    check_same_tests,
    group_by_arm,
    group_runs,
    read_compared_runs,
)
from ratchet.tracking.preregistration import PreregistrationRecord
from ratchet.tracking.run_folder import RunFolder

MAX_NAMED = 3
"""Maximum number of groups named in the title."""


def compare_runs(
    folders: Sequence[RunFolder],
    *,
    title: str = "",
    tasks: Sequence[str] = (),
    by_arm: bool = False,
    metrics: Sequence[str] = (),
    less: Sequence[str] = (),
    curves: Sequence[str] = (),
    axis: AxisName | None = None,
    reach: Sequence[float] = (),
    lines: Sequence[ReferenceValue] = (),
    options: Options | None = None,
    different_data: bool = False,
    skip_unfinished: bool = False,
    preregistered: PreregistrationRecord | None = None,
) -> Comparison:
    """Compare runs, grouped by differing parameters, with seeds as repetitions.

    Raises DataError, with the remedy, if the runs cannot be compared.

    Parameters
    ----------
    folders
        The runs; each arm counts as a trained experiment.
    tasks
        Dotted paths of parameters that define tasks, over which groups are averaged.
    by_arm
        Group by arm, regardless of differing parameters.
    metrics
        Recorded metrics ``STAGE/NAME`` to compare, in addition to test accuracies.
    less
        The same for metrics of which less is better.
    curves, axis, reach
        Learning curves; see :func:`ratchet.reports.comparison.learning.compare_learning`.
    lines
        Reference accuracies to show.
    different_data
        Allow different test data.
    preregistered
        Preregistration of the sweep that consists of these runs. Its baselines or pairs apply if
        the options name none.
    """
    runs, run_notes = read_compared_runs(folders, skip_unfinished=skip_unfinished)
    grouping = group_by_arm(runs) if by_arm else group_runs(runs, tasks)
    same_seeds = len({tuple(group.seeds) for group in grouping.groups}) == 1
    notes = check_same_tests(runs, allow_different=different_data, same_seeds=same_seeds)
    chosen = [
        *test_metrics(runs),
        *(recorded_metric(name, runs) for name in metrics),
        *(recorded_metric(name, runs, less_is_better=True) for name in less),
    ]
    if not chosen:
        known = {f"{p.stage}/{name}" for run in runs for p in run.points for name in p.values}
        tested = sorted(name for name in known if name.startswith("test"))
        raise DataError(
            "compare: these runs have no test in common in which anything is decided. Name what to"
            f" compare them by, e.g. --metric {tested[0] if tested else 'STAGE/NAME'}."
        )
    labels = [group.label for group in grouping.groups]
    used = with_preregistered_groups(options or Options(), preregistered, labels)
    _check_labels(used, labels)
    comparison = Comparison(
        title=title or _title(grouping),
        grouping=grouping,
        metrics=compare_groups(grouping, chosen, used),
        notes=[*notes, *_notes(grouping, runs), *run_notes],
        options=used,
        learning=compare_learning(grouping.groups, used, metrics=curves, axis=axis, reach=reach),
        lines=lines,
    )
    if preregistered is None:
        return comparison
    checked = check_preregistration(comparison, preregistered, [each.run_id for each in folders])
    return replace(comparison, preregistered=checked)


def _check_labels(options: Options, labels: Sequence[str]) -> None:
    if options.pairs and options.baselines:
        raise ParameterError("compare: got --pair and --baseline, expected one of them.")
    named = [("--baseline", name) for name in options.baselines]
    named += [("--pair", name) for pair in options.pairs for name in pair]
    for option, name in named:
        if name not in labels:
            raise ParameterError(
                f"{option}: got {name!r}, expected one of the groups {', '.join(labels)}."
                f"{nearest(name, labels)}"
            )


def _title(grouping: Grouping) -> str:
    labels = [group.label for group in grouping.groups]
    if len(labels) > MAX_NAMED:
        paths = ", ".join(path.rpartition(".")[2] for path in grouping.paths)
        return f"Comparison of {len(labels)} groups by {paths}"
    return f"Comparison of {', '.join(labels[:-1])} and {labels[-1]}" if labels[1:] else labels[0]


def _notes(grouping: Grouping, runs: Sequence[ComparedRun]) -> list[str]:
    """Return notes on data, seeds and code of the runs."""
    notes = []
    for what in ("train", "test"):
        hashes = {run.data_hashes[what] for run in runs if what in run.data_hashes}
        if len(hashes) == 1 and what == "test":
            notes.append(f"Test data {next(iter(hashes))[:16]}, the same for all runs.")
        elif len(hashes) > 1 and what == "train":
            notes.append(f"Training data differ: {len(hashes)} different sets.")
    sizes = {
        test: len(set(runs[0].tables[test].columns["datapoint_id"])) for test in runs[0].tables
    }
    if sizes:
        text = ", ".join(f"{size:,} in {test!r}" for test, size in sorted(sizes.items()))
        notes.append(f"Datapoints tested: {text}.")
    seeds = {tuple(group.seeds) for group in grouping.groups}
    if len(seeds) > 1:
        notes.append("Not all groups have the same seeds.")
    codes = sorted({run.code for run in runs if run.code})
    changed = " (+: with changes or untracked files that the commit lacks)"
    mark = changed if any(code.endswith("+") for code in codes) else ""
    if len(codes) > 1:
        notes.append(f"The runs were started with different code: {', '.join(codes)}{mark}.")
    elif codes:
        notes.append(f"Code {codes[0]}{mark}.")
    return notes
