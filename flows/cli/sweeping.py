"""``ratchet sweep``: an experiment for each member of a sweep, and how each has ended."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeGuard

import typer

from flows.cli.running import ExperimentPath, NoProgress
from flows.process.messages import print_plain, print_table, print_warning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.sweeps.grid import Grid
    from flows.sweeps.members import ResolvedSweep, SweepMember
    from ratchet.experiment_files.loading import ExperimentFile
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.parameters.sweeps import GridSweep, SweepSpec
    from ratchet.tracking.sweep_folder import SweepMemberRecord

MAX_LISTED = 50
"""A dry run lists so many members, and of larger sweeps a sample."""

Assignments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[a.b=VALUES]...",
        help="What varies, e.g. seed=0..4 interaction_protocol=nip,adp; a single value is for all."
        " Beside it what the file's section `sweep` says.",
    ),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        "-j",
        min=1,
        help="How many run at a time, in processes or as settings.runner says.",
    ),
]


def sweep(
    file: ExperimentPath,
    assignments: Assignments = None,
    parallel: Parallel = 1,
    name: Annotated[str | None, typer.Option("--name", help="The sweep's own name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the members.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run only the members that have failed.")
    ] = False,
    no_progress: NoProgress = False,
) -> None:
    """Run an experiment for every combination of values, or go on with it.

    Members are the runs that `ratchet run` makes of the same values; they share finished stages.
    One that fails does not keep the others from running. Which members there are is said by the
    values, or by the file's section `sweep`: a grid, values side by side, random or Sobol samples,
    or Optuna, which chooses each from what others came to, and may prune it.
    """
    from flows.sweeps.files import read_sweep_file

    experiment, spec, settings = read_sweep_file(file, assignments or [])
    if not dry_run:  # Prefect's server starts while this process imports what members need
        from flows.runs.running import prepare_process

        prepare_process(settings)
    elif _is_large(spec):
        _list_some(experiment, spec.parameters, settings)
        return
    from flows.sweeps.members import resolve_sweep

    resolved = resolve_sweep(
        experiment.hyper_params,
        spec,
        settings,
        experiment.arm_changes,
        name=experiment.name,
        sweep_name=name,
    )
    print_plain(f"Sweep {resolved.sweep_id}: {resolved.num_members:,} members")
    compare = f"ratchet compare {resolved.sweep_id}{_warn_of_data(resolved.members)}"
    if dry_run:
        planned = resolved.record(resolved.members).members
        _list_members(planned or resolved.known_record().members)
        return
    _run(replace(resolved, retry_failed=retry_failed), parallel, quiet=no_progress)
    print_plain(f"Compare  {compare}")


def _is_large(spec: SweepSpec) -> TypeGuard[GridSweep]:
    from ratchet.parameters.sweeps import GridSweep

    if not isinstance(spec, GridSweep):
        return False
    return math.prod(map(len, spec.parameters.values())) > MAX_LISTED


def _run(resolved: ResolvedSweep, parallel: int, *, quiet: bool) -> None:
    """Run the members, and print how each stands, however that ends."""
    from flows.process.progress import shown_progress
    from flows.sweeps.running import run_resolved_sweep
    from ratchet.tracking.sweep_folder import PAGE_FILE

    try:
        at_once = parallel > 1 or resolved.settings.runner != "inline"
        total = resolved.num_members if at_once else None
        with shown_progress("none" if quiet else resolved.settings.progress, total):
            run_resolved_sweep(resolved, parallel)
    finally:
        _print_members(resolved)
        page = resolved.folder / PAGE_FILE
        if page.exists():
            print_plain(f"Page  {page}")


def _list_some(experiment: ExperimentFile, grid: Grid, settings: ExperimentSettings) -> None:
    """List a few members of a large sweep without making the others, at once.

    Whether names are right is checked, and not whether all goes together: that takes the code.
    """
    from flows.sweeps.grid import sample_points
    from flows.sweeps.members import sweep_members
    from trainers.combinations import check_names

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
        f"Sweep of {number:,} members; whether each goes together is checked before the first runs."
        " Some of them, each value with the others' first:"
    )
    _list_members(members)
    _warn_of_data(members)


def _warn_of_data(members: Sequence[SweepMember]) -> str:
    """Say what can't be compared later on; return the option by which it is compared anyway."""
    from flows.sweeps.members import changes_of_data

    changed = changes_of_data(members)
    if not changed:
        return ""
    print_warning(
        f"{', '.join(changed)} changes the data, those of tests too: `ratchet compare` refuses to"
        " compare what was tested on different datapoints, unless you add --different-data. Data"
        " with a seed of their own (SCENARIO.dataset_seed=0) are the same for every seed."
    )
    return " --different-data"


def _print_members(resolved: ResolvedSweep) -> None:
    """Print how each member stands, from its run folder."""
    from flows.runs.result_table import in_short, test_results
    from flows.sweeps.grid import describe_point
    from ratchet.tracking.run_folder import RunFolder

    rows, records = [], []
    for member in resolved.known_record().members:
        path = Path(resolved.settings.runs) / member.run_id
        is_begun = (path / "manifest.json").exists()
        status = RunFolder(path).status if is_begun else "not begun"
        tests = test_results(RunFolder(path)) if is_begun else []
        label = describe_point(member.changes) or member.run_id
        rows.append((member.run_id, label, status, in_short(tests)))
        record = {"run": member.run_id, "changes": member.changes, "status": status}
        records.append({**record, "results": [each.record for each in tests]})
    print_table("", ("run", "changes", "status", "accuracy"), rows, records)


def _list_members(members: Sequence[SweepMember] | Sequence[SweepMemberRecord]) -> None:
    from flows.sweeps.grid import describe_point

    rows = [(each.run_id, describe_point(each.changes) or each.run_id) for each in members]
    records = [{"run": each.run_id, "changes": each.changes} for each in members]
    print_table("", ("run", "changes"), rows, records)
