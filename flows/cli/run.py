"""``ratchet run``, ``resume`` and ``fork``: run an experiment with progress shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.completion import experiment_files
from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_warning
from ratchet.errors import USAGE_ERRORS, ParameterError, RatchetError

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import RunFolder

ExperimentPath = Annotated[
    str, typer.Argument(help="Experiment file (YAML).", autocompletion=experiment_files)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="a.b=value", help="Overrides, e.g. rl.num_iterations=20"),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", help="Maximum cost of chat models, at which the run stops."),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Hide progress.")]


def run(
    file: ExperimentPath,
    overrides: Overrides = None,
    new: Annotated[
        bool, typer.Option("--new-run", help="Start a new run instead of resuming.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--recompute", help="Recompute stages even if cached.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Reuse stages that cost money if only code changed.")
    ] = False,
    recompute_paid: Annotated[
        bool,
        typer.Option(
            "--recompute-paid", help="Recompute and pay again for stages whose code changed."
        ),
    ] = False,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Run or resume an experiment file; finished stages are reused."""
    from flows.runs.resolve import resolve_file

    if keep and recompute_paid:
        raise ParameterError("run: got both --keep and --recompute-paid, expected one of them.")
    changes = [*(overrides or []), *([] if budget is None else [f"settings.budget={budget}"])]
    if keep or recompute_paid:
        changes.append(f"settings.paid_code_changes={'keep' if keep else 'recompute'}")
    run_and_show(resolve_file(file, changes, new=new), force=force, quiet=no_progress)


def resume(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Resume a run with its finished stages, even if code has changed."""
    from flows.runs.resolve import resolve_run
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    _, settings = split_settings(folder, None, budget)
    run_and_show(resolve_run(folder.run_id, settings, settings.runs), quiet=no_progress)


def fork(
    run: RunName,
    from_stage: Annotated[
        str, typer.Option("--from", help="K or K:STAGE, the first stage of the new run.")
    ],
    overrides: Overrides = None,
    runs: RunsFolder = DEFAULT_RUNS,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Start a run that shares another's stages up to a point."""
    from flows.process.environment import prepare_environment
    from flows.runs.derived_runs import resolve_fork
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    changes, settings = split_settings(folder, overrides, budget)
    prepare_environment(settings.home, settings.num_threads)
    experiment = resolve_fork(folder.run_id, from_stage, changes, settings)
    print_plain(f"Fork of {folder.run_id}")
    run_and_show(experiment, quiet=no_progress)


def split_settings(
    folder: RunFolder, overrides: list[str] | None, budget: float | None = None
) -> tuple[dict[str, Any], ExperimentSettings]:
    """Split overrides of a run into changed parameters and the run's settings with changes.

    Raises ParameterError if an override or a setting is invalid.
    """
    from ratchet.experiment_files.loading import parse_overrides
    from ratchet.parameters.reading.deep_merge import expand_paths, merge_nested
    from ratchet.parameters.settings import ExperimentSettings

    changes = expand_paths(parse_overrides(overrides or []), "overrides")
    changed = changes.pop("settings", {})
    if not isinstance(changed, dict):
        raise ParameterError(f"settings: got {changed!r}, expected settings.NAME=value.")
    if budget is not None:
        changed = {**changed, "budget": budget}
    settings = ExperimentSettings.from_dict(merge_nested(folder.manifest.settings, changed))
    runs = str(folder.path.resolve().parent)
    return changes, settings.model_copy(update={"runs": runs})


def run_and_show(experiment: ResolvedExperiment, *, quiet: bool, force: bool = False) -> None:
    """Run with progress shown and print the results, or on failure the command to resume."""
    from flows.cli.runs import print_results, warn_if_behind
    from flows.runs.preflight import check_experiment
    from flows.runs.run import run_resolved
    from ratchet.tracking.run_folder import RunFolder

    settings, run_id = experiment.settings, experiment.run_id
    if settings.device != "cpu":  # refuse a missing device before printing the run's id
        check_experiment(experiment)
    print_plain(f"Run {run_id}")

    try:
        result = run_resolved(experiment, "none" if quiet else settings.progress, force=force)
    except KeyboardInterrupt:
        if not (experiment.run_path / "manifest.json").exists():
            print_warning(f"Run {run_id} was not recorded yet, so `ratchet runs` omits it.")
        raise
    except RatchetError as error:
        manifest = experiment.run_path / "manifest.json"
        has_started = manifest.exists() and not isinstance(error, USAGE_ERRORS)
        if has_started:
            warn_if_behind(RunFolder(experiment.run_path), settings)
        if has_started and "ratchet resume" not in str(error):
            print_warning(f"Finished stages are stored. To resume: ratchet resume {run_id}")
        raise
    print_results(RunFolder(result.folder), settings, result)
