"""Build ``report.html``: one page that needs no network, from a run folder and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.errors import DataError
from ratchet.reports.content import Content, read_content
from ratchet.reports.curves import curve_figures
from ratchet.reports.headline import are_repetitions, headline
from ratchet.reports.labels import ranges
from ratchet.reports.page import figures_json, page_environment, plotly_js
from ratchet.reports.plots import group_figures, tested_figures
from ratchet.reports.returns import return_difference_rows, return_rows
from ratchet.reports.tables import (
    accuracy_rows,
    contestants,
    difference_rows,
    duration,
    group_tables,
    num_iterations,
    parameter_rows,
    show,
    stage_summaries,
    test_metric_rows,
)
from ratchet.tracking.files import write_atomically
from ratchet.tracking.run_folder import RunFolder

MAX_EVENTS = 200


def build_report(run_folder: RunFolder | Path | str) -> Path:
    """Write a run's report into its folder; return the path of ``report.html``.

    May be called at any time, of a run that is going on as well: sections that have nothing to
    show yet are left out.

    Raises
    ------
    RunNotFoundError
        If the folder holds no run.
    DataError
        If one of its files is damaged.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    write_atomically(folder.report_path, render(read_content([folder])))
    return folder.report_path


def build_comparison(run_folders: Sequence[RunFolder], path: Path) -> Path:
    """Write a report of several runs beside each other; differences are to the first.

    Raises
    ------
    DataError
        If there are fewer than two runs.
    """
    if len(run_folders) < 2:
        raise DataError(f"compare: got {len(run_folders)} runs, expected at least two.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(read_content(run_folders)))
    return path


def render(content: Content) -> str:
    """Write the page."""
    environment = page_environment()
    environment.filters |= {"duration": duration, "show": show, "date": _date, "ranges": ranges}
    return environment.get_template("template.html.j2").render(
        content=content, plotly_js=plotly_js(), **_sections(content)
    )


def _sections(content: Content) -> dict[str, Any]:
    arms = content.arms
    accuracies, returns = accuracy_rows(arms), return_rows(arms)
    differences = [] if are_repetitions(arms) else difference_rows(arms)
    labels = [contestant.label for contestant in contestants(arms)]
    training = [
        *curve_figures(arms, "train", "iteration"),
        *curve_figures(arms, "log_stats", "iteration"),
    ]
    testing = [
        *curve_figures(arms, "test_during_training", "iteration"),
        *curve_figures(arms, "validate", "iteration"),
        *curve_figures(arms, "suite", "iteration"),
    ]
    ends = {arm.label: num_iterations(arm) for arm in arms}
    tested = tested_figures(arms, content.transcripts, ends)
    pretraining = [
        *curve_figures(arms, "pretrain", "epoch"),
        *curve_figures(arms, "imitate", "iteration"),
    ]
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
        "contestants": labels,
        "training": training,
        "testing": testing,
        "tested": tested,
        "pretraining": pretraining,
        "spending": content.spending,
        "billed": content.billed,
        "test_metrics": test_metric_rows(arms),
        "transcripts": content.transcripts,
        "films": content.films,
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
