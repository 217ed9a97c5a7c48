"""``ratchet compare``: runs and sweeps beside each other, seeds as repetitions."""

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

MAX_PAIRS = 3
"""The differences of more pairs are on the page, and in JSON, rather than on a terminal."""

RunNames = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Runs and sweeps, as `ratchet report` takes.",
        autocompletion=runs_and_sweeps,
    ),
]


TaskNames = Annotated[
    list[str] | None,
    typer.Option("--task", help="A parameter whose values are tasks to average over."),
]
MetricNames = Annotated[
    list[str] | None,
    typer.Option("--metric", help="A recorded metric too, e.g. test/test_mean_episode_length."),
]
CurveNames = Annotated[
    list[str] | None,
    typer.Option("--curve", help="A learning curve to draw, e.g. train/verifier.accuracy."),
]
ReachedValues = Annotated[
    list[float] | None,
    typer.Option("--reach", help="When do runs reach this value of the learning curve?"),
]

KnownLines = Annotated[
    list[str] | None,
    typer.Option(
        "--line",
        metavar="LABEL=VALUE",
        help="A known accuracy to draw as a line, e.g. 'random question, exact=0.932'.",
    ),
]


class IntervalKind(StrEnum):
    """How bootstrap intervals are made."""

    EXPANDED = "expanded"
    PERCENTILE = "percentile"


class Axis(StrEnum):
    """What was spent when a value was measured."""

    FRAMES = "frames"
    TOKENS = "tokens"
    CALLS = "calls"
    ITERATIONS = "iterations"


def compare(
    names: RunNames,
    tasks: TaskNames = None,
    metrics: MetricNames = None,
    curves: CurveNames = None,
    over: Annotated[
        Axis | None, typer.Option(help="What learning curves go over; frames where all have them.")
    ] = None,
    reach: ReachedValues = None,
    lines: KnownLines = None,
    by_arm: Annotated[
        bool, typer.Option("--by-arm", help="Arms are the groups, whatever they differ in.")
    ] = False,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.95,
    interval: Annotated[
        IntervalKind,
        typer.Option(help="Expanded: honest with few seeds. Percentile: as published."),
    ] = IntervalKind.EXPANDED,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to write to; the sweep's own.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="A Markdown page whose marked part to write anew."),
    ] = None,
    title: Annotated[str, typer.Option(help="Of what is written.")] = "",
    different_data: Annotated[
        bool, typer.Option("--different-data", help="Even if test data differ.")
    ] = False,
    skip_unfinished: Annotated[
        bool, typer.Option("--skip-unfinished", help="Leave out runs that are not finished.")
    ] = False,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Compare runs: groups by what differs, seeds as repetitions, with intervals.

    Writes comparison.md, .json, .html and .svg.
    """
    from ratchet.reports.comparison.comparing import compare_runs
    from ratchet.reports.comparison.lines import known_values
    from ratchet.reports.comparison.options import Options

    folders, sweeps = _find(runs, names)
    comparison = compare_runs(
        folders,
        title=title,
        tasks=tasks or [],
        by_arm=by_arm,
        metrics=metrics or [],
        curves=curves or [],
        axis=None if over is None else over.value,
        reach=reach or [],
        lines=known_values(lines or []),
        options=Options(level=level, method=interval.value),
        different_data=different_data,
        skip_unfinished=skip_unfinished,
    )
    comparison = replace(comparison, commands=_commands(sweeps))
    _publish(comparison, to or _default_folder(Path(runs), folders, sweeps), page)


def _find(runs: str, names: list[str]) -> tuple[list[RunFolder], list[SweepRecord]]:
    """Find runs, and the members of sweeps; each run once, in order."""
    from ratchet.errors import RunNotFoundError
    from ratchet.tracking.run_folder import RunFolder, find_run
    from ratchet.tracking.sweep_folder import read_sweep

    found: dict[str, RunFolder] = {}
    sweeps = []
    for name in names:
        sweep = read_sweep(runs, name)
        if sweep is None:
            folder = find_run(runs, name)
            found.setdefault(folder.run_id, folder)
            continue
        sweeps.append(sweep)
        for member in sweep.members:
            path = Path(runs) / member.run_id
            if not (path / "manifest.json").exists():
                raise RunNotFoundError(
                    f"compare: the member {member.run_id} of {sweep.sweep_id} has not begun. Go on"
                    f" with the sweep: {_command(sweep.command)}"
                )
            found.setdefault(member.run_id, RunFolder(path))
    return list(found.values()), sweeps


def _default_folder(runs: Path, folders: list[RunFolder], sweeps: list[SweepRecord]) -> Path:
    if len(sweeps) == 1 and len(folders) == len(sweeps[0].members):
        return runs / sweeps[0].sweep_id
    ids = ",".join(sorted(folder.run_id for folder in folders))
    return runs / f"comparison-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"


def _commands(sweeps: list[SweepRecord]) -> list[str]:
    """Return the commands that made the sweeps, and this one, each once."""
    from ratchet.tracking.invocation import command_line

    commands = [*(_command(sweep.command) for sweep in sweeps), _command(command_line())]
    return list(dict.fromkeys(commands))


def _command(arguments: list[str]) -> str:
    """Write a command line as one types it."""
    program, *others = arguments or ["ratchet"]
    return shlex.join([Path(program).name, *others])


def _publish(comparison: Comparison, folder: Path, page: Path | None) -> None:
    """Show a comparison, write it to a folder and into a page, and say where it is."""
    from ratchet.reports.comparison.files import write_comparison, write_document

    _show(comparison)
    files = write_comparison(comparison, folder)
    for path in (files.page, files.markdown, files.data, files.picture):
        print_plain(str(path))
    if page is not None:
        write_document(comparison, page)
        print_plain(f"{page}  and {page.with_suffix('.svg').name} beside it")


def _show(comparison: Comparison) -> None:
    """Show the scores, and of the rest what is short; JSON has it all."""
    from ratchet.reports.comparison.shown import learning_table, pair_table
    from ratchet.reports.comparison.text import verdicts

    for table in comparison.tables:
        show_table(table)
    for found in comparison.metrics:
        if 0 < len(found.pairs) <= MAX_PAIRS or (found.pairs and prints_json()):
            show_table(pair_table(comparison, found, brief=True))
        for verdict in verdicts(comparison, found):
            print_plain(verdict)
    for learning in comparison.learning if prints_json() else comparison.learning[:1]:
        show_table(learning_table(comparison, learning))
    if any(min(map(len, group.tasks)) == 1 for group in comparison.grouping.groups):
        print_warning("A group with one seed has no interval: run more seeds.")
