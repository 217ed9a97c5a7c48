"""``ratchet sweep`` and ``sweep-page``: run the members of a sweep, and show their status."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.completion import runs_and_sweeps
from flows.cli.run import ExperimentPath, NoProgress
from flows.cli.runs import DEFAULT_RUNS, RunsFolder
from flows.process.messages import (
    print_plain,
    print_table,
    print_warning,
    prints_json,
    show_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.sweeps.members import ResolvedSweep, SweepMember
    from flows.sweeps.points import Grid
    from ratchet.experiment_files.loading import ExperimentFile
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.sweep_folder import SweepMemberRecord

MAX_LISTED = 50
"""Maximum number of members listed by a dry run; larger sweeps are sampled."""

Assignments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="a.b=VALUES",
        help="Varying values, e.g. seed=0..4 interaction_protocol=nip,adp; a single value applies"
        " to all members. Combined with the file's section `sweep`.",
    ),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        "-j",
        min=1,
        help="Number of concurrent members, in processes or with settings.runner.",
    ),
]


def sweep(
    file: ExperimentPath,
    assignments: Assignments = None,
    parallel: Parallel = 1,
    name: Annotated[str | None, typer.Option("--name", help="Name of the sweep.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the members.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run only failed members.")
    ] = False,
    no_progress: NoProgress = False,
) -> None:
    """Run or resume an experiment for every combination of values.

    Members are identical to runs by `ratchet run` with the same values and share finished stages.
    If a member fails, the others still run. The values, or the file's section `sweep`, define the
    members: a grid, zipped values, random or Sobol samples, or Optuna, which chooses members from
    earlier results and may prune them.
    """
    from flows.sweeps.members import read_sweep_file
    from ratchet.parameters.sweeps import GridSweep

    experiment, spec, settings = read_sweep_file(file, assignments or [])
    if not dry_run:  # Prefect's server starts while this process imports packages
        from flows.runs.run import prepare_process

        prepare_process(settings)
    elif isinstance(spec, GridSweep) and math.prod(map(len, spec.parameters.values())) > MAX_LISTED:
        _list_some(experiment, spec.parameters, settings)
        return
    from flows.sweeps.members import resolve_file_sweep

    resolved = resolve_file_sweep(experiment, spec, name)
    print_plain(f"Sweep {resolved.sweep_id}: {resolved.num_members:,} members")
    compare = f"ratchet compare {resolved.sweep_id}{_warn_of_data(resolved.members)}"
    if dry_run:
        planned = resolved.record(resolved.members).members
        _list_members(planned or resolved.known_record().members)
        return
    _run(replace(resolved, retry_failed=retry_failed), parallel, quiet=no_progress)
    print_plain(f"Compare  {compare}")


def _run(resolved: ResolvedSweep, parallel: int, *, quiet: bool) -> None:
    """Run the members; print the status of each even after an error."""
    from flows.process.progress import shown_progress
    from flows.sweeps.running import run_resolved_sweep
    from ratchet.tracking.sweep_folder import PAGE_FILE

    try:
        is_parallel = parallel > 1 or resolved.settings.runner != "inline"
        total = resolved.num_members if is_parallel else None
        with shown_progress("none" if quiet else resolved.settings.progress, total):
            run_resolved_sweep(resolved, parallel)
    finally:
        _print_members(resolved)
        page = resolved.folder / PAGE_FILE
        if page.exists():
            print_plain(f"Page  {page}")


def _list_some(experiment: ExperimentFile, grid: Grid, settings: ExperimentSettings) -> None:
    """List a sample of a large sweep's members quickly, without resolving the others.

    Checks parameter names, but not whether the values are compatible, which requires imports.
    """
    from flows.sweeps.members import sweep_members
    from flows.sweeps.points import sample_points
    from trainers.compatibility import check_names

    number = math.prod(map(len, grid.values()))
    points = sample_points(grid, MAX_LISTED // len(grid))
    members = sweep_members(
        experiment.hyper_params,
        points,
        experiment.arm_changes,
        name=experiment.name,
        settings=settings,
        check=check_names,
    )
    print_plain(
        f"Sweep of {number:,} members, validated before the first one runs. A sample, each value"
        " with the first values of the other parameters:"
    )
    _list_members(members)
    _warn_of_data(members)


def _warn_of_data(members: Sequence[SweepMember]) -> str:
    """Warn about members with different data; return the option to compare them anyway."""
    from flows.sweeps.members import changes_of_data

    changed = changes_of_data(members)
    if not changed:
        return ""
    if changed == ["seed"]:
        print_plain(
            "Each seed has its own training and test data: the intervals of `ratchet compare` then"
            " also cover the variation over data sets."
        )
        return ""
    print_warning(
        f"{', '.join(changed)} changes the training and test data: `ratchet compare` refuses runs"
        " with different test datapoints unless you add --allow-data-mismatch. With a separate data"
        " seed (SCENARIO.dataset_seed=0) all seeds use the same data."
    )
    return " --allow-data-mismatch"


def _print_members(resolved: ResolvedSweep) -> None:
    """Print the status of each member from its run folder."""
    from flows.runs.result import summary_line, test_results
    from flows.sweeps.points import describe_point
    from ratchet.reports.sweep.status import read_status
    from ratchet.tracking.run_folder import RunFolder

    rows, records = [], []
    record = resolved.known_record()
    for member in record.members:
        path = Path(resolved.settings.runs) / member.run_id
        has_started = (path / "manifest.json").exists()
        status = RunFolder(path).status if has_started else "not started"
        tests = test_results(RunFolder(path)) if has_started else []
        label = describe_point(member.changes) or member.run_id
        rows.append((member.run_id, label, status, summary_line(tests)))
        row = {"run": member.run_id, "changes": member.changes, "status": status}
        records.append({**row, "results": [each.record for each in tests]})
    print_table("", ("run", "changes", "status", "result"), rows, records)
    if "metric" in record.spec:
        for note in read_status(resolved.settings.runs, record).score_notes:
            print_warning(note)


def _list_members(members: Sequence[SweepMember] | Sequence[SweepMemberRecord]) -> None:
    from flows.sweeps.points import describe_point

    rows = [(each.run_id, describe_point(each.changes) or each.run_id) for each in members]
    records = [{"run": each.run_id, "changes": each.changes} for each in members]
    print_table("", ("run", "changes"), rows, records)


def sweep_page(
    name: Annotated[
        str, typer.Argument(metavar="SWEEP", help="A sweep.", autocompletion=runs_and_sweeps)
    ],
    metric: Annotated[
        str | None,
        typer.Option(help="Score members by the last value of a recorded metric, STAGE/NAME."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Output folder (default: the sweep's folder)."),
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Write a page with a sweep's members, scores and importances.

    Available at any time; an open page reloads while members run.
    """
    from ratchet.reports.sweep.groups import group_table
    from ratchet.reports.sweep.page import make_sweep_page, write_sweep_page

    page = make_sweep_page(runs, name, metric)
    status = page.status
    if prints_json():
        show_table(status.table)
        show_table(page.importance_table)
        show_table(group_table(status, page.groups))
    print_plain(f"Sweep {status.record.sweep_id}: {status.counts}")
    if page.best:
        print_plain(f"Best so far  {page.best}")
    print_plain(str(write_sweep_page(page, to or Path(runs) / status.record.sweep_id)))
