"""``ratchet retest``, ``verify`` and ``restore``: test and check a run's states, or compute one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.run import NoProgress, Overrides, run_and_show, split_settings
from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_table

if TYPE_CHECKING:
    from flows.runs.verify import RemadeStage
    from ratchet.reports.comparison.published import Published
    from ratchet.tracking.run_folder import RunFolder

_EXIT_DIFFERENT = 1


def retest(
    run: RunName,
    overrides: Overrides = None,
    runs: RunsFolder = DEFAULT_RUNS,
    no_progress: NoProgress = False,
) -> None:
    """Test all saved states of a run again, without training."""
    from flows.runs.derived_runs import resolve_retest
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    changes, settings = split_settings(folder, overrides)
    experiment = resolve_retest(folder.run_id, changes, settings)
    print_plain(f"Retest of {folder.run_id}")
    run_and_show(experiment, quiet=no_progress)


def verify(
    run: RunName,
    stage: Annotated[
        str | None, typer.Option("--stage", help="Stage to recompute, as NAME or NAME:K.")
    ] = None,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Only check the stored files.")
    ] = False,
    published: Annotated[
        Path | None,
        typer.Option("--published", help="The .json file of a results page to compare with."),
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Check a run's stored files, and recompute one stage bit for bit."""
    from flows.process.environment import prepare_environment
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    settings = ExperimentSettings.from_dict(folder.manifest.settings)
    settings = settings.model_copy(update={"runs": str(folder.path.resolve().parent)})
    prepare_environment(settings.home, settings.num_threads)
    from flows.runs.verify import verify_run
    from ratchet.reports.comparison.published import read_published

    results = None if published is None else read_published(published)
    verified = verify_run(folder.run_id, settings, stage=stage, remake=not files_only)
    broken = [checked for checked in verified.stages if checked.problems]
    if broken:
        columns = ("arm", "stage", "iterations", "problem")
        rows = [
            (c.record.arm, c.record.stage, str(c.record.iteration), problem)
            for c in broken
            for problem in c.problems
        ]
        print_table("Damaged", columns, rows)
        print_plain(f"`ratchet resume {verified.run_id}` recomputes them.")
    sound = len(verified.stages) - len(broken)
    print_plain(f"{sound} of {len(verified.stages)} stages are unchanged.")
    for text in verified.removed:
        print_plain(text)
    if verified.remade is not None:
        _show(verified.remade)
    as_published = results is None or _show_published(folder, results)
    if not (verified.is_sound and as_published):
        raise typer.Exit(_EXIT_DIFFERENT)


def restore(
    run: RunName,
    iteration: Annotated[
        int, typer.Argument(metavar="K", help="Number of iterations that led to the state.")
    ],
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Compute a state that was removed to free space again."""
    from flows.process.environment import prepare_environment
    from flows.process.progress import shown_progress
    from flows.runs.resolve import resolve_run
    from flows.runs.restored_states import restore_state

    experiment = resolve_run(run, None, runs)
    settings = experiment.settings
    prepare_environment(settings.home, settings.num_threads)
    with shown_progress(settings.progress):
        arms = restore_state(experiment, iteration)
    print_plain(
        f"Restored the state after {iteration} iterations of {experiment.run_id},"
        f" {'arm' if len(arms) == 1 else 'arms'} {', '.join(arms)}."
    )


def _show_published(folder: RunFolder, published: Published) -> bool:
    """Compare a run with the published results; return whether all are identical."""
    from ratchet.reports.comparison.published import check_published

    checked = check_published(folder, published)
    rows: list[tuple[str, str, str, str]] = []
    for run in checked:
        for test in run.tests:
            if test.is_same:
                print_plain(f"All decisions as published: {test}.")
            else:
                here = str(test.here or "not tested")
                rows.append((run.arm, test.test, str(test.published), here))
        for kind in dict.fromkeys(value.kind for value in run.values):
            values = [value for value in run.values if value.kind == kind]
            same = sum(value.is_same for value in values)
            print_plain(f"As published: {kind}, {same} of {len(values)} values of arm {run.arm}.")
            rows += [
                (run.arm, f"{kind} {v.name}", _short(v.published), _short(v.here))
                for v in values
                if not v.is_same
            ]
        if run.not_compared:
            print_plain(f"Not compared, missing in the file: {', '.join(run.not_compared)}.")
    if rows:
        print_table("Different from published", ("arm", "what", "published", "here"), rows)
        _explain_differences(folder, published, {run.code for run in checked if run.code})
    return not rows


def _short(value: float | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "missing" if value is None else value[:16]


def _explain_differences(folder: RunFolder, published: Published, codes: set[str]) -> None:
    """Print how the environment of a run differs from that of the published results."""
    from ratchet.reports.comparison.published import different_versions, unrecorded_versions

    here = folder.manifest.versions  # where the run was started
    for difference in different_versions(published, here):
        print_plain(f"Published with {difference}.")
    for code in sorted(codes - {folder.manifest.code.short}):
        print_plain(f"Published with code {code}, here {folder.manifest.code.short or 'none'}.")
    unrecorded = unrecorded_versions(published, here)
    if unrecorded:
        print_plain(f"Not recorded in the published file: {'; '.join(unrecorded)}.")


def _show(remade: RemadeStage) -> None:
    from ratchet.tracking.stage_kinds import kind_of

    record = remade.record
    has_span = kind_of(record.stage).span == "iterations"
    span = f"{record.start_iteration} → {record.iteration}" if has_span else record.iteration
    what = f"{record.stage} of arm {record.arm}, iterations {span}"
    if not remade.differences:
        print_plain(f"Recomputed, bit for bit identical: {what}.")
    else:
        rows = [(difference,) for difference in remade.differences]
        print_table(f"Recomputed, with differences: {what}", ("difference",), rows)
    if remade.code_changes:
        print_plain(f"Code has changed since: {', '.join(remade.code_changes)}.")
