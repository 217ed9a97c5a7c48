"""Build ``report.html``: the page of a run, from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import DataError
from ratchet.parameters.language import LANGUAGE_TRAINERS
from ratchet.reports.content import Arm, Content, read_content
from ratchet.reports.curves import by_family, curve_figures
from ratchet.reports.labels import ranges
from ratchet.reports.page import figures_json, page_environment, plotly_script, shared_plotly_script
from ratchet.reports.plots import group_figures, tested_figures
from ratchet.reports.tables import (
    AccuracyRow,
    DifferenceRow,
    ReturnRow,
    accuracy_rows,
    difference_rows,
    duration,
    evaluated_arms,
    group_tables,
    num_iterations,
    parameter_rows,
    return_difference_rows,
    return_rows,
    returns_headline,
    stage_summaries,
    test_metric_rows,
)
from ratchet.reports.transcripts import PackedTranscripts
from ratchet.statistics.estimate import Estimate
from ratchet.tracking.files import write_atomically
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.stage_kinds import KINDS

MAX_EVENTS = 200
_GREEDY_TESTS = (
    "Tests use the most likely actions, training samples them: the results of both may differ."
)


def build_report(run_folder: RunFolder | Path | str, *, standalone: bool = False) -> Path:
    """Write a run's report into its folder; return the path of ``report.html``.

    May be called at any time, also during the run: empty sections are omitted. The reports of a
    folder of runs share one copy of plotly.js; a ``standalone`` report contains its own.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    script = plotly_script() if standalone else shared_plotly_script(folder.path.parent)
    write_atomically(folder.report_path, render(read_content([folder]), script))
    return folder.report_path


def build_comparison(run_folders: Sequence[RunFolder], path: Path) -> Path:
    """Write a report that compares several runs; differences are relative to the first."""
    if len(run_folders) < 2:
        raise DataError(f"compare: got {len(run_folders)} runs, expected at least two.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(read_content(run_folders), plotly_script()))
    return path


def render(content: Content, script: str) -> str:
    """Render the page; ``script`` is the element that loads plotly.js."""
    environment = page_environment()
    environment.filters |= {"duration": duration, "date": _date, "ranges": ranges}
    environment.filters["by_family"] = by_family
    return environment.get_template("template.html.j2").render(
        content=content, plotly_script=script, **_sections(content)
    )


def _sections(content: Content) -> dict[str, Any]:
    arms = content.arms
    accuracies, returns = accuracy_rows(arms), return_rows(arms)
    differences = [] if are_repetitions(arms) else difference_rows(arms)
    labels = [evaluated.label for evaluated in evaluated_arms(arms)]
    kinds = dict.fromkeys([*KINDS.values(), *(kind for arm in arms for kind in arm.kinds)])
    training, testing, pretraining = (
        [figure for kind in kinds if kind.curves == section for figure in curve_figures(arms, kind)]
        for section in ("training", "testing", "pretraining")
    )
    ends = {arm.label: num_iterations(arm) for arm in arms}
    tested = tested_figures(arms, content.transcripts, ends)
    groups = [(each, rows, group_figures(each, rows, labels)) for each, rows in group_tables(arms)]
    grouped = [figure for *_, figures in groups for figure in figures]
    parameters = parameter_rows(arms)
    return {
        "headline": headline(accuracies, differences, arms, content.transcripts, returns),
        "returns": returns,
        "return_differences": [] if are_repetitions(arms) else return_difference_rows(arms),
        "accuracies": accuracies,
        "differences": differences,
        "groups": groups,
        "evaluated_arms": labels,
        "greedy_tests": _GREEDY_TESTS if any(map(tests_greedily, arms)) else "",
        "training": training,
        "testing": testing,
        "tested": tested,
        "pretraining": pretraining,
        "costs": content.costs,
        "billed": content.billed,
        "test_metrics": test_metric_rows(arms),
        "transcripts": content.transcripts,
        "videos": content.videos,
        "stages": stage_summaries(arms),
        "changed_parameters": [row for row in parameters if row.differs],
        "default_parameters": [row for row in parameters if not row.differs],
        "events": list(content.events)[-MAX_EVENTS:],
        "figures_json": figures_json([*tested, *training, *testing, *pretraining, *grouped]),
    }


def _date(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def headline(
    accuracies: Sequence[AccuracyRow],
    differences: Sequence[DifferenceRow],
    arms: Sequence[Arm] = (),
    transcripts: Sequence[PackedTranscripts] = (),
    returns: Sequence[ReturnRow] = (),
) -> str:
    """Summarise the results in a sentence; return an empty string without tests.

    Arms that differ only in their seed are summarised by their range, not compared.
    """
    tested = [row for row in accuracies if row.dataset == "test" and not row.alone]
    if not tested:
        return returns_headline(returns)
    before = _before_training(transcripts, [row.arm for row in tested])
    if are_repetitions(arms) and len(tested) > 1:
        return _of_repetitions(tested, before)
    first = tested[0]
    sentence = f"“{first.arm}” {_share(first)}"
    if before:
        sentence += f", {before[0].percent()} before training"
    rivals = [row for row in differences if row.dataset == "test"]
    if not rivals:
        return f"{sentence}."
    rival = rivals[0]
    beyond = "more than" if rival.estimate.excludes_zero else "no more than"
    verdict = f"{beyond} the draw of test data explains (one training run each)"
    points = f"{rival.estimate.points()} percentage points"
    return f"{sentence}; the difference to “{rival.second}” is {points}, {verdict}."


def tests_greedily(arm: Arm) -> bool:
    """Return whether an arm's tests use greedy actions, unlike its training."""
    parameters, trainer = arm.hyper_params, str(arm.hyper_params.get("trainer", ""))
    if trainer in LANGUAGE_TRAINERS:
        return not parameters.get("language", {}).get("test_temperature", 0)
    plays = trainer != "solo_agent" and any(point.stage == "train" for point in arm.points)
    return plays and not parameters.get("rl", {}).get("test_by_sampling", False)


def are_repetitions(arms: Sequence[Arm]) -> bool:
    """Return whether several arms differ only in their seeds."""
    plain = [{name: v for name, v in arm.hyper_params.items() if name != "seed"} for arm in arms]
    return len(plain) > 1 and all(parameters == plain[0] for parameters in plain)


def _before_training(
    transcripts: Sequence[PackedTranscripts], arms: Sequence[str]
) -> list[Estimate]:
    """Return the test accuracies of the arms' initial models, where available, in order."""
    accuracy_by_arm = {
        one.label: one.accuracy
        for one in transcripts
        if one.is_test and one.iteration == 0 and one.accuracy is not None
    }
    return [accuracy_by_arm[arm] for arm in arms if arm in accuracy_by_arm]


def _of_repetitions(tested: Sequence[AccuracyRow], before: Sequence[Estimate]) -> str:
    share = f"{_range([row.estimate for row in tested])} of {tested[0].estimate.n:,}"
    what = "test datapoints are decided" if tested[0].is_decided else "test tasks are done"
    sentence = f"Over {len(tested)} seeds, {share} {what} correctly"
    return f"{sentence}; before training {_range(before)}." if before else f"{sentence}."


def _share(row: AccuracyRow) -> str:
    """Describe the share of correct decisions or tasks."""
    share = f"{row.estimate.percent()} of {row.estimate.n:,} test"
    return (
        f"decides {share} datapoints correctly" if row.is_decided else f"gets {share} tasks right"
    )


def _range(estimates: Sequence[Estimate]) -> str:
    values = [100 * estimate.value for estimate in estimates]
    return f"{min(values):.1f} to {max(values):.1f} %"
