"""``ratchet run``, ``resume`` and ``fork``: run an experiment and show how it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.completion import experiment_files
from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_warning
from ratchet.errors import USAGE_ERRORS, ParameterError, RatchetError

if TYPE_CHECKING:
    from flows.runs.resolving import ResolvedExperiment
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import RunFolder

ExperimentPath = Annotated[
    str, typer.Argument(help="An experiment file (YAML).", autocompletion=experiment_files)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[a.b=value]...", help="On top of it, e.g. rl.num_iterations=20"),
]
Budget = Annotated[
    float | None, typer.Option("--budget", help="What chat models may cost; stops there.")
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]


def run(
    file: ExperimentPath,
    overrides: Overrides = None,
    new: Annotated[bool, typer.Option("--new", help="A new run instead of going on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Make stored stages anew.")] = False,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Run an experiment file, or go on with its run: what is finished is never done twice."""
    from flows.runs.resolving import resolve_file

    changes = [*(overrides or []), *([] if budget is None else [f"settings.budget={budget}"])]
    run_and_show(resolve_file(file, changes, new=new), force=force, quiet=no_progress)


def resume(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Go on with a run as it was started, keeping what is finished even if code has changed."""
    from flows.runs.resolving import resolve_run
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    _, settings = split_settings(folder, None, budget)
    run_and_show(resolve_run(folder.run_id, settings, settings.runs), quiet=no_progress)


def fork(
    run: RunName,
    from_stage: Annotated[
        str, typer.Option("--from", help="K or K:STAGE, the first stage that it does itself.")
    ],
    overrides: Overrides = None,
    runs: RunsFolder = DEFAULT_RUNS,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Start a new run that shares another's stages before a point and goes on with changes."""
    from flows.process.environment import prepare_environment
    from flows.runs.forking import resolve_fork
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
    """Divide what is put over a run into changes of parameters and its settings, changed.

    Raises ParameterError if an override or a setting is wrong.
    """
    from ratchet.experiment_files.loading import parse_overrides
    from ratchet.parameters.changes import expand_paths, merge_nested
    from ratchet.parameters.settings import ExperimentSettings

    changes = expand_paths(parse_overrides(overrides or []), "overrides")
    own = changes.pop("settings", {})
    if not isinstance(own, dict):
        raise ParameterError(f"settings: got {own!r}, expected settings.NAME=value.")
    if budget is not None:
        own = {**own, "budget": budget}
    settings = ExperimentSettings.from_dict(merge_nested(folder.manifest.settings, own))
    runs = str(folder.path.resolve().parent)
    return changes, settings.model_copy(update={"runs": runs})


def run_and_show(experiment: ResolvedExperiment, *, quiet: bool, force: bool = False) -> None:
    """Run with progress shown, then print the results; on failure say what to do next."""
    from flows.cli.results import print_results, warn_if_behind
    from flows.runs.preflight import check_experiment
    from flows.runs.running import run_resolved
    from ratchet.tracking.run_folder import RunFolder

    settings, run_id = experiment.settings, experiment.run_id
    if settings.device != "cpu":  # a missing one is refused before the run is named
        check_experiment(experiment)
    print_plain(f"Run {run_id}")

    try:
        result = run_resolved(experiment, "none" if quiet else settings.progress, force=force)
    except KeyboardInterrupt:
        if not (experiment.run_path / "manifest.json").exists():
            print_warning(f"Run {run_id} was not recorded yet: `ratchet runs` does not list it.")
        raise
    except RatchetError as error:
        manifest = experiment.run_path / "manifest.json"
        is_begun = manifest.exists() and not isinstance(error, USAGE_ERRORS)
        if is_begun:
            warn_if_behind(RunFolder(experiment.run_path), settings)
        if is_begun and "ratchet resume" not in str(error):
            print_warning(f"Finished stages are kept. To go on: ratchet resume {run_id}")
        raise
    print_results(RunFolder(result.folder), settings, result)
