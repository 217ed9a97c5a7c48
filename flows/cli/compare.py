"""``ratchet compare``: comparison of runs and sweeps, with seeds as repetitions."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.completion import runs_and_sweeps
from flows.cli.runs import DEFAULT_RUNS, RunsFolder
from flows.process.messages import print_plain, print_warning, prints_json, show_table

if TYPE_CHECKING:
    from ratchet.reports.comparison.comparison import Comparison
    from ratchet.tracking.run_folder import RunFolder
    from ratchet.tracking.sweep_folder import SweepRecord

MAX_PAIRS = 10
"""Maximum number of pairs printed on a terminal; the page and JSON contain all differences."""

_RUNS_DIR = "--runs-dir"

RunNames = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN",
        help="Ids, id prefixes or folders of runs and sweeps.",
        autocompletion=runs_and_sweeps,
    ),
]


TaskNames = Annotated[
    list[str] | None,
    typer.Option("--task", help="Parameter whose values are tasks to average over."),
]
MetricNames = Annotated[
    list[str] | None,
    typer.Option("--metric", help="Additional metric, e.g. test/test_mean_episode_length."),
]
LessMetricNames = Annotated[
    list[str] | None,
    typer.Option("--less", help="Additional metric of which less is better, e.g. train/loss."),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="GROUP",
        help="Group with which all others are compared (default: all pairs).",
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--pair",
        metavar="'A vs B'",
        help="Two groups to compare, instead of all pairs.",
    ),
]
Effect = Annotated[
    float | None,
    typer.Option(
        min=0.0001, help="Print the seeds required to detect this difference; 0.05 is 5 points."
    ),
]
CurveNames = Annotated[
    list[str] | None,
    typer.Option("--curve", help="Learning curve to plot, e.g. train/verifier.accuracy."),
]
ReachedValues = Annotated[
    list[float] | None,
    typer.Option("--threshold", help="Report when runs reach this value of the learning curve."),
]
KnownLines = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="LABEL=VALUE",
        help="Reference accuracy to plot as a line, e.g. 'random question, exact=0.932'.",
    ),
]


class IntervalKind(StrEnum):
    """Kind of bootstrap interval."""

    EXPANDED = "expanded"
    PERCENTILE = "percentile"


class Axis(StrEnum):
    """Unit of the x axis: amount used when a value was measured."""

    FRAMES = "frames"
    TOKENS = "tokens"
    CALLS = "calls"
    ITERATIONS = "iterations"
    SAMPLED_TOKENS = "sampled_tokens"


CurveAxis = Annotated[
    Axis | None,
    typer.Option(help="X axis of learning curves (default: frames if all runs record them)."),
]
ByArm = Annotated[
    bool, typer.Option("--by-arm", help="Group by arm instead of by differing parameters.")
]
IntervalOption = Annotated[
    IntervalKind,
    typer.Option(help="Expanded: correct coverage with few seeds. Percentile: as published."),
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        help="Output folder (default: the sweep's, or comparison-ID in the runs folder).",
    ),
]
UpdatedPage = Annotated[
    Path | None,
    typer.Option("--update-page", help="Markdown page whose marked section is updated."),
]
DifferentData = Annotated[
    bool, typer.Option("--allow-data-mismatch", help="Compare even if the test data differ.")
]
SkipUnfinished = Annotated[bool, typer.Option("--skip-unfinished", help="Exclude unfinished runs.")]


def compare(
    names: RunNames,
    tasks: TaskNames = None,
    metrics: MetricNames = None,
    less: LessMetricNames = None,
    baselines: Baselines = None,
    pairs: Pairs = None,
    effect: Effect = None,
    curves: CurveNames = None,
    x_axis: CurveAxis = None,
    threshold: ReachedValues = None,
    reference: KnownLines = None,
    by_arm: ByArm = False,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.95,
    interval: IntervalOption = IntervalKind.EXPANDED,
    output_dir: OutputFolder = None,
    update_page: UpdatedPage = None,
    title: Annotated[str, typer.Option(help="Title of the comparison.")] = "",
    allow_data_mismatch: DifferentData = False,
    skip_unfinished: SkipUnfinished = False,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Compare groups of runs, with seeds as repetitions and intervals.

    Runs are grouped by differing parameters. Writes comparison.md, .json, .html and .svg.
    """
    from ratchet.reports.comparison.comparing import compare_runs
    from ratchet.reports.comparison.options import Options, planned_pairs, reference_values

    folders, sweeps, sweep = find_runs("compare", runs, names)
    comparison = compare_runs(
        folders,
        title=title,
        tasks=tasks or [],
        by_arm=by_arm,
        metrics=metrics or [],
        less=less or [],
        curves=curves or [],
        axis=None if x_axis is None else x_axis.value,
        reach=threshold or [],
        lines=reference_values(reference or []),
        options=Options(
            level=level,
            method=interval.value,
            baselines=baselines or (),
            pairs=planned_pairs(pairs or []),
            effect=effect,
        ),
        different_data=allow_data_mismatch,
        skip_unfinished=skip_unfinished,
        preregistered=None if sweep is None else sweep.preregistered,
    )
    folder = output_dir or _default_folder(Path(runs), folders, sweep)
    _publish(replace(comparison, commands=_commands(sweeps)), folder, update_page)


def find_runs(
    command: str, runs: str, names: list[str]
) -> tuple[list[RunFolder], list[SweepRecord], SweepRecord | None]:
    """Find runs and the members of sweeps, without duplicates, in order.

    Returns the runs, the sweeps, and the sweep whose members are all of the runs, if any.
    """
    from ratchet.errors import RunNotFoundError
    from ratchet.tracking.run_folder import RunFolder, find_run
    from ratchet.tracking.sweep_folder import read_sweep

    folders: dict[str, RunFolder] = {}
    sweeps = []
    for name in names:
        sweep = read_sweep(runs, name)
        if sweep is None:
            folder = find_run(runs, name)
            folders.setdefault(folder.run_id, folder)
            continue
        sweeps.append(sweep)
        for member in sweep.members:
            path = Path(runs) / member.run_id
            if not (path / "manifest.json").exists():
                raise RunNotFoundError(
                    f"{command}: the member {member.run_id} of {sweep.sweep_id} has not started."
                    f" Resume the sweep: {_command(sweep.command)}"
                )
            folders.setdefault(member.run_id, RunFolder(path))
    is_one_sweep = len(sweeps) == 1 and len(folders) == len(sweeps[0].members)
    return list(folders.values()), sweeps, sweeps[0] if is_one_sweep else None


def _default_folder(runs: Path, folders: list[RunFolder], sweep: SweepRecord | None) -> Path:
    if sweep is not None:
        return runs / sweep.sweep_id
    ids = ",".join(sorted(folder.run_id for folder in folders))
    return runs / f"comparison-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"


def _commands(sweeps: list[SweepRecord]) -> list[str]:
    """Return the commands of the sweeps and this command, without duplicates."""
    from ratchet.tracking.environment import command_line

    commands = [*(_command(sweep.command) for sweep in sweeps), _command(command_line())]
    return list(dict.fromkeys(commands))


def _command(arguments: list[str]) -> str:
    """Format a command line for a shell, without settings and folders of this machine."""
    program, *others = arguments or ["ratchet"]
    if _RUNS_DIR in others:
        position = others.index(_RUNS_DIR)
        del others[position : position + 2]
    portable_arguments = [each for each in others if not each.startswith("settings.")]
    return shlex.join([Path(program).name, *portable_arguments])


def _publish(comparison: Comparison, folder: Path, page: Path | None) -> None:
    """Show a comparison, write it to a folder and a page, and print the paths."""
    from ratchet.reports.comparison.files import write_comparison, write_document

    _show(comparison)
    for path in write_comparison(comparison, folder):
        print_plain(str(path))
    if page is not None:
        write_document(comparison, page)
        print_plain(f"{page}  and {page.with_suffix('.svg').name} in the same folder")


def _show(comparison: Comparison) -> None:
    """Show the scores and short tables; JSON contains all tables."""
    from ratchet.reports.comparison.comparison import scores_table
    from ratchet.reports.comparison.display_tables import learning_table, pair_table
    from ratchet.reports.comparison.options import MIN_SEEDS
    from ratchet.reports.comparison.preregistration import preregistration_note
    from ratchet.reports.comparison.text import verdicts

    if note := preregistration_note(comparison):
        print_plain(note)
    for metric in comparison.main_metrics:
        show_table(scores_table(comparison, metric))
        if 0 < len(metric.pairs) <= MAX_PAIRS or (metric.pairs and prints_json()):
            show_table(pair_table(comparison, metric))
        for verdict in verdicts(comparison, metric):
            print_plain(verdict)
    for learning in comparison.learning if prints_json() else comparison.learning[:1]:
        show_table(learning_table(comparison, learning))
    if any(min(map(len, group.tasks)) < MIN_SEEDS for group in comparison.grouping.groups):
        print_warning(f"Groups with fewer than {MIN_SEEDS} seeds have no interval: run more seeds.")
