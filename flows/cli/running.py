"""``ratchet run``, ``resume`` and ``fork``: run an experiment and show how it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import print_plain, print_warning
from ratchet.errors import ParameterError, RatchetError

if TYPE_CHECKING:
    from flows.planning.plan import PlannedStage
    from flows.runs.result import ExperimentResult
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import RunFolder

ExperimentPath = Annotated[str, typer.Argument(help="An experiment file (YAML).")]
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
    from flows.runs.identity import MAIN_ARM, stable_run_id
    from ratchet.experiment_files.loading import load_experiment

    changes = [*(overrides or []), *([] if budget is None else [f"settings.budget={budget}"])]
    experiment = load_experiment(file, changes)
    arms = {MAIN_ARM: experiment.hyper_params, **experiment.arms}
    settings = experiment.settings
    run_id = settings.run_id or stable_run_id(experiment.name, arms)
    run_id = _unused(run_id, Path(settings.runs)) if new else run_id
    settings = settings.model_copy(update={"run_id": run_id})

    def work() -> ExperimentResult:
        from flows.runs.running import run_arms

        return run_arms(arms, settings, name=experiment.name, force=force)

    run_and_show(work, run_id, settings, arms, quiet=no_progress)


def resume(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    budget: Budget = None,
    no_progress: NoProgress = False,
) -> None:
    """Go on with a run as it was started, keeping what is finished even if code has changed."""
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    settings = ExperimentSettings.from_dict(folder.manifest.settings)
    settings = settings.model_copy(update={"run_id": folder.run_id})
    if budget is not None:
        settings = ExperimentSettings.from_dict({**settings.to_dict(), "budget": budget})
    arms = {
        arm: HyperParameters.from_dict(data, settings.base_dir)
        for arm, data in folder.manifest.arms.items()
    }

    def work() -> ExperimentResult:
        from flows.runs.running import resume_experiment

        return resume_experiment(folder.run_id, settings, runs=str(folder.path.parent))

    run_and_show(work, folder.run_id, settings, arms, quiet=no_progress, keep=True)


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
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    changes, settings = split_settings(folder, overrides, budget)

    def work() -> ExperimentResult:
        from flows.runs.forking import fork_experiment

        return fork_experiment(folder.run_id, from_stage, changes, settings)

    print_plain(f"Fork of {folder.run_id}")
    run_and_show(work, None, settings, None, quiet=no_progress)


def split_settings(
    folder: RunFolder, overrides: list[str] | None, budget: float | None = None
) -> tuple[dict[str, Any], ExperimentSettings]:
    """Divide what is put over a run into changes of parameters and its settings, changed.

    Raises
    ------
    ParameterError
        If an override or a setting is wrong.
    """
    from ratchet.experiment_files.loading import expand_paths, parse_overrides
    from ratchet.parameters.changes import merge_changes
    from ratchet.parameters.settings import ExperimentSettings

    changes = expand_paths(parse_overrides(overrides or []), "overrides")
    own = changes.pop("settings", {})
    if not isinstance(own, dict):
        raise ParameterError(f"settings: got {own!r}, expected settings.NAME=value.")
    if budget is not None:
        own = {**own, "budget": budget}
    settings = ExperimentSettings.from_dict(merge_changes(folder.manifest.settings, own))
    runs = str(folder.path.resolve().parent)
    return changes, settings.model_copy(update={"runs": runs})


def run_and_show(
    work: Callable[[], ExperimentResult],
    run_id: str | None,
    settings: ExperimentSettings,
    arms: dict[str, HyperParameters] | None,
    *,
    quiet: bool,
    keep: bool = False,
) -> None:
    """Do the work with progress shown, then print the results; on failure say what to do next."""
    from flows.cli.progress import shown_progress
    from flows.cli.results import print_results
    from flows.process import temporary_server
    from flows.process.environment import prepare_environment

    if run_id is not None:
        print_plain(f"Run {run_id}")
    prepare_environment(settings.home, settings.num_threads)
    temporary_server.launch(settings.home)  # it starts while this process imports what it needs
    try:
        total = _remaining_iterations(arms, settings, keep=keep) if arms is not None else None
        with shown_progress("none" if quiet else settings.progress, total):
            result = work()
    except RatchetError as error:
        begun = run_id is not None and (Path(settings.runs) / run_id).is_dir()
        if begun and "ratchet resume" not in str(error):
            print_warning(f"Finished stages are kept. To go on: ratchet resume {run_id}")
        raise
    from ratchet.tracking.run_folder import RunFolder

    print_results(RunFolder(result.folder), Path(settings.home).resolve(), result)


def _remaining_iterations(
    arms: dict[str, HyperParameters], settings: ExperimentSettings, *, keep: bool
) -> int:
    """Count the iterations and epochs of the stages that are not stored yet."""
    from flows.planning.plan import plan_experiment
    from flows.runs.identity import MAIN_ARM

    others: dict[str, Any] = {arm: params for arm, params in arms.items() if arm != MAIN_ARM}
    plan = plan_experiment(arms[MAIN_ARM], settings, arms=others, keep=keep)
    return sum(_iterations(stage, arms[stage.arm]) for stage in plan if not stage.hit)


def _iterations(stage: PlannedStage, hyper_params: HyperParameters) -> int:
    if stage.num_rollouts:
        return stage.num_rollouts
    if stage.stage == "train":
        return stage.iteration - stage.start
    if stage.stage.startswith("pretrain-"):
        return int(hyper_params.solo_agent.num_epochs)
    return 0


def _unused(run_id: str, runs: Path) -> str:
    """Return the first of ``run_id-2``, ``run_id-3`` … that is no run yet."""
    number = 2
    while (runs / f"{run_id}-{number}").exists():
        number += 1
    return f"{run_id}-{number}" if (runs / run_id).exists() else run_id
