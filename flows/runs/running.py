"""Run experiments from plain Python: sets the process up for Prefect, then runs the flow."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from flows.process import temporary_server
from flows.runs.identity import (
    ArmChanges,
    Arms,
    absolute_settings,
    read_arms,
    stable_run_id,
    with_earlier_agents,
)
from flows.runs.result import ExperimentResult
from ratchet.errors import RatchetError, StageFailedError, StoreError
from ratchet.experiment_files.earlier_runs import with_base_run
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings

_Result = TypeVar("_Result")


def run_experiment(
    hyper_params: HyperParameters | Mapping[str, Any],
    settings: ExperimentSettings | None = None,
    *,
    arms: ArmChanges | None = None,
    name: str = "experiment",
    force: bool = False,
) -> ExperimentResult:
    """Run an experiment, or go on with it: finished stages are found, the others are made.

    Parameters
    ----------
    hyper_params
        All that decides the result.
    settings
        Where and how it runs.
    arms
        Further experiments of the same run by name: whole parameters, or changes to the main
        ones, nested or dotted.
    name
        The experiment's name; the run's id is made of it and the parameters, unless the settings
        have one.
    force
        Make every stage anew even if it is stored.

    Raises
    ------
    RatchetError
        What a stage failed with, if it was a known failure.
    StageFailedError
        If a stage failed otherwise; the message has the command that goes on.
    """
    wanted = settings or ExperimentSettings()
    chosen = _as_parameters(hyper_params, wanted)
    complete = read_arms(chosen, arms, wanted.base_dir)
    return run_arms(complete, settings, name=name, force=force)


def resume_experiment(
    run: str, settings: ExperimentSettings | None = None, *, runs: str | None = None
) -> ExperimentResult:
    """Go on with a run as it was started, keeping its finished stages even if code has changed.

    Parameters
    ----------
    run
        The run's id, its beginning, or its folder.
    settings
        Other settings than the run was started with.
    runs
        The folder of all runs; that of the settings by default.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    """
    from ratchet.tracking.run_folder import find_run

    base = settings or ExperimentSettings()
    folder = find_run(runs or base.runs, run)
    manifest = folder.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    chosen = chosen.model_copy(
        update={"run_id": folder.run_id, "runs": str(folder.path.resolve().parent)}
    )
    arms = {
        arm: HyperParameters.from_dict(data, chosen.base_dir) for arm, data in manifest.arms.items()
    }
    return run_arms(arms, chosen, name=manifest.name, keep=True)


def run_arms(
    arms: Arms,
    settings: ExperimentSettings | None,
    *,
    name: str,
    keep: bool = False,
    force: bool = False,
) -> ExperimentResult:
    """Run the flow over complete arms, the main one among them (errors as above)."""
    chosen = absolute_settings(settings or ExperimentSettings())
    arms = with_earlier_agents(arms, chosen)
    run_id = chosen.run_id or stable_run_id(name, arms)
    chosen = chosen.model_copy(update={"run_id": run_id})
    prepare_process(chosen)
    main, *others = arms
    parameters: dict[str, Any] = {
        "hyper_params": arms[main].to_dict(),
        "settings": chosen.to_dict(),
        "arms": {arm: arms[arm].to_dict() for arm in others},
        "name": name,
        "keep": keep,
        "force": force,
    }
    try:
        temporary_server.ensure(chosen.home)
        return ExperimentResult.from_dict(_run_flow(run_id, parameters))
    except RatchetError:
        raise
    except Exception as error:
        raise StageFailedError(
            f"run {run_id} failed: {type(error).__name__}: {error}\nFinished stages are kept. Go on"
            f" with `ratchet resume {run_id}`, or with the same command."
        ) from error


def prepare_process(settings: ExperimentSettings) -> None:
    """Set the process up for Prefect, which is imported after this, and begin to start a server.

    Raises
    ------
    StoreError
        If ``settings.home`` can't be made.
    """
    from flows.process.environment import prepare_environment

    _make_home(Path(settings.home))
    prepare_environment(settings.home, settings.num_threads)
    temporary_server.launch(settings.home)


def run_to_end(run: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a coroutine, in a thread of its own where an event loop is running (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context.run, asyncio.run, run()).result()


def _run_flow(run_id: str, parameters: dict[str, Any]) -> dict[str, Any]:
    from flows.experiment_flow import experiment

    async def run() -> dict[str, Any]:
        named = experiment.with_options(flow_run_name=run_id)
        result: dict[str, Any] = await named(**parameters)
        return result

    return run_to_end(run)


def _make_home(home: Path) -> None:
    """Make the folder of Prefect's database, without whose parents its server never starts."""
    try:
        (home / "prefect").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{home}: cannot be made or written ({error}). Choose another place with the setting"
            " `home`."
        ) from error


def _as_parameters(
    hyper_params: HyperParameters | Mapping[str, Any], settings: ExperimentSettings
) -> HyperParameters:
    if isinstance(hyper_params, HyperParameters):
        return hyper_params
    return HyperParameters.from_dict(with_base_run(hyper_params, settings.runs), settings.base_dir)
