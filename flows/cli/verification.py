"""``ratchet retest`` and ``verify``: test a run's states again, and check its integrity."""

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
    if verified.remade is not None:
        _show(verified.remade)
    as_published = results is None or _show_published(folder, results)
    if not (verified.is_sound and as_published):
        raise typer.Exit(_EXIT_DIFFERENT)


def _show_published(folder: RunFolder, published: Published) -> bool:
    """Compare a run's tests with the published ones; return whether all are identical."""
    from ratchet.reports.comparison.published import check_published, different_versions
    from ratchet.tracking.environment import made_with

    checked = check_published(folder, published)
    different = [each for each in checked if not each.is_same]
    for each in checked:
        if each.is_same:
            print_plain(f"All decisions as published: {each}.")
    if different:
        columns = ("arm", "test", "published", "here")
        rows = [(c.arm, c.test, str(c.published), str(c.here or "not tested")) for c in different]
        print_table("Different from published", columns, rows)
        for difference in different_versions(published, made_with()):
            print_plain(f"Published with {difference}.")
    return not different


def _show(remade: RemadeStage) -> None:
    record = remade.record
    what = f"{record.stage} of arm {record.arm}, {record.iteration} iterations"
    if not remade.differences:
        print_plain(f"Recomputed, bit for bit identical: {what}.")
    else:
        rows = [(difference,) for difference in remade.differences]
        print_table(f"Recomputed, with differences: {what}", ("difference",), rows)
    if remade.code_changes:
        print_plain(f"Code has changed since: {', '.join(remade.code_changes)}.")
