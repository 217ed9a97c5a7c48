"""``ratchet sweep``: one experiment for each combination of values, and how each has ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.running import ExperimentPath, NoProgress
from flows.process.messages import print_plain, print_table, print_warning
from ratchet.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.sweeps.grid import Grid
    from flows.sweeps.members import ResolvedSweep, SweepMember
    from ratchet.experiment_files.loading import ExperimentFile
    from ratchet.parameters.settings import ExperimentSettings

MAX_LISTED = 50
"""A dry run lists so many members, and of larger sweeps a sample."""

Assignments = Annotated[
    list[str],
    typer.Argument(
        metavar="[a.b=VALUES]...",
        help="What varies, e.g. seed=0..4 interaction_protocol=nip,adp; a single value is for all.",
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
    assignments: Assignments,
    parallel: Parallel = 1,
    name: Annotated[str | None, typer.Option("--name", help="The sweep's own name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the members.")] = False,
    no_progress: NoProgress = False,
) -> None:
    """Run an experiment for every combination of values, or go on with it.

    Members are the runs that `ratchet run` makes of the same values; they share finished stages.
    One that fails does not keep the others from running.
    """
    experiment, grid, settings = _read(file, assignments)
    number = math.prod(map(len, grid.values()))
    if not dry_run:  # Prefect's server starts while this process imports what members need
        from flows.runs.running import prepare_process

        prepare_process(settings)
    elif number > MAX_LISTED:
        _list_some(experiment, grid, settings, number)
        return
    from flows.sweeps.members import resolve_sweep

    resolved = resolve_sweep(
        experiment.hyper_params,
        grid,
        settings,
        experiment.arm_changes,
        name=experiment.name,
        sweep_name=name,
    )
    members = resolved.members
    print_plain(f"Sweep {resolved.sweep_id}: {number:,} members")
    compare = f"ratchet compare {resolved.sweep_id}{_warn_of_data(members)}"
    if dry_run:
        _list_members(members)
        return
    _run(resolved, parallel, quiet=no_progress)
    print_plain(f"Compare  {compare}")


def _read(file: str, assignments: list[str]) -> tuple[ExperimentFile, Grid, ExperimentSettings]:
    """Read what all members have in common, what varies, and the settings."""
    from flows.runs.resolving import absolute_settings
    from flows.sweeps.grid import read_grid
    from ratchet.experiment_files.loading import load_experiment
    from trainers.registry import TRAINERS

    grid, overrides = read_grid(assignments)
    experiment = load_experiment(file, overrides, {"trainer": TRAINERS})
    settings = absolute_settings(experiment.settings)
    if settings.run_id is not None:
        raise ParameterError(
            f"settings.run_id: got {settings.run_id!r}, but each member of a sweep has an id of its"
            " own. Leave it out."
        )
    return experiment, grid, settings


def _run(resolved: ResolvedSweep, parallel: int, *, quiet: bool) -> None:
    """Run the members, and print how each stands, however that ends."""
    from flows.process.progress import shown_progress
    from flows.sweeps.running import run_resolved_sweep

    try:
        at_once = parallel > 1 or resolved.settings.runner != "inline"
        total = len(resolved.members) if at_once else None
        with shown_progress("none" if quiet else resolved.settings.progress, total):
            run_resolved_sweep(resolved, parallel)
    finally:
        _print_members(resolved.members)


def _list_some(
    experiment: ExperimentFile, grid: Grid, settings: ExperimentSettings, number: int
) -> None:
    """List a few members of a large sweep without making the others, at once.

    Whether names are right is checked, and not whether all goes together: that takes the code.
    """
    from flows.sweeps.grid import sample_points
    from flows.sweeps.members import sweep_members
    from trainers.combinations import check_names

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


def _print_members(members: Sequence[SweepMember]) -> None:
    """Print how each member stands, from its run folder."""
    from flows.runs.result_table import in_short, test_results
    from ratchet.tracking.run_folder import RunFolder

    rows, records = [], []
    for member in members:
        path = member.experiment.run_path
        is_begun = (path / "manifest.json").exists()
        status = RunFolder(path).status if is_begun else "not begun"
        tests = test_results(RunFolder(path)) if is_begun else []
        rows.append((member.run_id, member.label, status, in_short(tests)))
        record = {"run": member.run_id, "changes": member.changes, "status": status}
        records.append({**record, "results": [each.record for each in tests]})
    print_table("", ("run", "changes", "status", "accuracy"), rows, records)


def _list_members(members: Sequence[SweepMember]) -> None:
    rows = [(each.run_id, each.label) for each in members]
    records = [{"run": each.run_id, "changes": each.changes} for each in members]
    print_table("", ("run", "changes"), rows, records)
