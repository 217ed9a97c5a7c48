"""``ratchet study``: run a study's file: searches, runs, comparisons, attacks and its page."""

from __future__ import annotations

import io
import shlex
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.completion import experiment_files
from flows.cli.run import NoProgress
from flows.cli.sweep import Parallel
from flows.process.messages import output_as_json, print_plain, print_table, print_warning
from flows.studies.steps import Part
from ratchet.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.studies.commands import StudyCommands
    from flows.studies.steps import Step
    from ratchet.experiment_files.study_file import SearchSection, StudyFile

_EXIT_FALSE = 1

StudyPath = Annotated[
    str, typer.Argument(help="Study file (YAML).", autocompletion=experiment_files)
]
StudySettings = Annotated[
    list[str] | None,
    typer.Argument(metavar="settings.a=value", help="Settings, e.g. settings.home=/data"),
]


def study(
    context: typer.Context,
    file: StudyPath,
    settings: StudySettings = None,
    only: Annotated[
        Part | None, typer.Option("--only", help="Run one part (default: all that is missing).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed to repeat, with --verify.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run one seed and compare it with the page's data.")
    ] = False,
    parallel: Parallel = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the study and list its commands.")
    ] = False,
    no_progress: NoProgress = False,
) -> None:
    """Run or resume a study: searches, runs, attacks, and its page.

    The file contains the searched values and the rule that chooses among them, seeds, comparisons,
    attacks and claims about the results. Choices are stored in a lock file next to it. Repeat the
    command to resume; finished stages are reused.
    """
    from flows.process.progress import shown_progress
    from flows.studies.choices import read_lock
    from flows.studies.commands import StudyCommands
    from ratchet.experiment_files.study_file import load_study

    if verify != (seed is not None):
        raise ParameterError("study: got --seed or --verify, expected both or none of them.")
    commands = StudyCommands.load(load_study(file), parallel, settings or [])
    lock = read_lock(commands.study)
    if seed is not None:
        _verify(context, commands, seed)
        return
    commands.require_choices(lock, only)
    steps = [*commands.searches(lock, only), *commands.runs(lock, only)]
    total = _list(commands, steps, dry_run=dry_run)
    if dry_run:
        return
    _register(commands.study)
    style = "none" if no_progress else commands.experiment.settings.progress
    with shown_progress(style, total if parallel > 1 else None):
        for step in commands.searches(lock, only):
            _run(context, step)
            _choose(commands.study, step.search)
        for step in commands.runs(read_lock(commands.study), only):
            _run(context, step)
    if only in (None, Part.PAGE):
        _check_claims(commands.study)


def _run(context: typer.Context, step: Step) -> None:
    """Run a step's command in this process; its runs and pages record this command."""
    from ratchet.tracking.files import write_atomically

    print_plain(f"$ {shlex.join(step.command)}")
    if step.output is None:
        _invoke(context, step.command)
        return
    with redirect_stdout(io.StringIO()) as written, output_as_json():
        _invoke(context, step.command)
    step.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(step.output, written.getvalue())
    print_plain(str(step.output))


def _invoke(context: typer.Context, command: Sequence[str]) -> None:
    from ratchet.tracking.environment import recorded_command

    _, name, *arguments = command
    group = context.find_root()
    subcommand = group.command.get_command(group, name)  # type: ignore[attr-defined]
    with recorded_command(command), subcommand.make_context(name, arguments, parent=group) as inner:
        subcommand.invoke(inner)


def _choose(study: StudyFile, search: SearchSection | None) -> None:
    """Choose the values of a search whose page has been written, and store them."""
    from flows.studies.choices import choose, read_lock, write_lock
    from flows.sweeps.points import describe_point
    from ratchet.reports.comparison.published import read_published

    if search is None:
        return
    choices = choose(search, read_published(search.page.with_suffix(".json")))
    lock = read_lock(study)
    chosen = {**lock.choices, search.page.as_posix(): choices}
    write_lock(study, lock.model_copy(update={"choices": chosen}))
    rows = [(arm, describe_point(values)) for arm, values in choices.items()]
    print_table(f"Choices in {study.lock}", ("arm", "values"), rows)


def _register(study: StudyFile) -> None:
    """Show when the study was registered; register it before its first run."""
    from flows.studies.choices import changed_files, register

    registered = register(study)
    if registered is None:
        return
    text = f"{registered.at:%Y-%m-%d %H:%M} UTC, digest {registered.digest}"
    print_plain(f"Registered on {text}" + f", code {registered.code}" * bool(registered.code))
    for path in changed_files(study, registered):
        print_warning(
            f"{path} has changed since the study's registration. Give a changed study a new name."
        )


def _list(commands: StudyCommands, steps: Sequence[Step], *, dry_run: bool) -> int:
    """Show the number of runs and an estimate, for a dry run also the commands.

    Returns the number of runs. A dry run validates all of them.
    """
    from flows.process.progress import format_seconds
    from flows.studies.status import check_sweep, read_progress, remaining_seconds

    runs = commands.experiment.settings.runs
    rows, records, num_finished = [], [], 0
    for step in steps:
        if dry_run:
            check_sweep(step)
        finished = read_progress(step, runs).num_finished
        num_finished += finished
        counts = {"runs": step.num_runs, "finished": finished}
        records.append({"part": step.part.value, **counts, "command": list(step.command)})
        if step.sweep:
            rows.append((step.part.value, step.sweep, str(step.num_runs), str(finished)))
        if dry_run:
            print_plain(shlex.join(step.command))
    if dry_run:
        print_table("", ("part", "sweep", "runs", "finished"), rows, records)
    total = sum(step.num_runs for step in steps)
    text = f"Study {commands.study.name}: {total} runs, {num_finished} finished"
    seconds = remaining_seconds(steps, runs, commands.parallel)
    print_plain(text + (f", about {format_seconds(seconds)} left" if seconds else ""))
    return total


def _verify(context: typer.Context, commands: StudyCommands, seed: int) -> None:
    """Run one seed of a study, and compare its results with the page's data."""
    from flows.runs.resolve import resolve_file
    from flows.studies.choices import read_lock

    study = commands.study
    if seed not in study.sections.run.seeds:
        raise ParameterError(
            f"study: --seed: got {seed}, expected one of {study.sections.run.seeds}."
        )
    lock = read_lock(study)
    commands.require_choices(lock, Part.RUN)
    overrides = commands.of_seed(seed, lock)
    run_id = resolve_file(commands.file, overrides).run_id
    _invoke(context, ["ratchet", "run", commands.file, *overrides])
    published = ["--published", str(study.data), "--files-only", *commands.runs_folder]
    _invoke(context, ["ratchet", "verify", run_id, *published])


def _check_claims(study: StudyFile) -> None:
    """Check a study's claims and its page's figures against its data; exit if one is false."""
    from ratchet.reports.claims import check_claims
    from ratchet.reports.figures import check_document

    claims = check_claims(study.sections.claims, study.data, study.attack_data)
    page = study.sections.page
    figures = check_document(page, page.parent)
    errors = [f"claim is false: {claim}" for claim in claims if not claim.holds]
    errors += [f"figure is wrong: {figure}" for figure in figures if not figure.is_right]
    for error in errors:
        print_warning(f"{page}: {error}")
    if errors:
        raise typer.Exit(_EXIT_FALSE)
    if claims:
        print_plain(f"{len(claims)} claims are true.")
    if figures:
        print_plain(f"{len(figures)} figures are right.")
