"""Run experiments from plain Python: sets the process up for Prefect, then runs the flow."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from flows.process import temporary_server
from flows.process.environment import (
    leave_tracebacks_out,
    log_to_prefect,
    prepare_environment,
)
from flows.process.progress import ProgressStyle, shown_progress
from flows.runs.preflight import check_experiment
from flows.runs.resolving import (
    HANDED_OVER,
    ArmChanges,
    ResolvedExperiment,
    resolve,
    resolve_run,
)
from flows.runs.result import ExperimentResult
from ratchet.errors import RatchetError, StageFailedError, StoreError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from trainers.progress import describe

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
    experiment = resolve(hyper_params, settings, arms, name=name)
    return run_resolved(experiment, experiment.settings.progress, force=force)


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
    base = settings or ExperimentSettings()
    experiment = resolve_run(run, settings, runs or base.runs)
    return run_resolved(experiment, experiment.settings.progress)


def run_resolved(
    experiment: ResolvedExperiment, progress: ProgressStyle = "none", *, force: bool = False
) -> ExperimentResult:
    """Run the flow over an experiment and show how it goes (errors as above)."""
    count = None if force else partial(_remaining_iterations, experiment)
    with shown_progress(progress, count):
        describe("Starting Prefect")
        check_experiment(experiment)
        return _run(experiment, {**experiment.flow_parameters(), "force": force})


def _remaining_iterations(experiment: ResolvedExperiment) -> int | None:
    """Count the iterations that a run has to do; imports torch."""
    from flows.planning.estimates import remaining_iterations

    return remaining_iterations(experiment)


def _run(experiment: ResolvedExperiment, parameters: dict[str, Any]) -> ExperimentResult:
    prepare_process(experiment.settings)
    if experiment.fork is not None:  # before the flow run, which may be retried without this
        experiment.fork.write(experiment.run_path)
    try:
        import_module("flows.experiment_flow")  # takes seconds, in which the server starts
        temporary_server.ensure(experiment.settings.home)
        log_to_prefect()
        leave_tracebacks_out()
        return ExperimentResult.from_dict(run_to_end(lambda: _run_flow(experiment, parameters)))
    except RatchetError:
        raise
    except Exception as error:
        run_id = experiment.run_id
        raise StageFailedError(
            f"run {run_id} failed: {type(error).__name__}: {error}\nFinished stages are kept. Go on"
            f" with `ratchet resume {run_id}`, or with the same command."
        ) from error


def prepare_process(settings: ExperimentSettings) -> None:
    """Set the process up for Prefect, which is imported after this, and begin to start a server.

    Raises StoreError if ``settings.home`` can't be made.
    """
    _make_home(Path(settings.home))
    prepare_environment(settings.home, settings.num_threads)
    temporary_server.launch(settings.home)


def run_to_end(run: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a coroutine, in a thread of its own where an event loop is running (notebooks).

    SIGTERM ends it as Ctrl-C does.
    """
    from prefect.exceptions import TerminationSignal

    try:
        return _run_anywhere(run)
    except TerminationSignal as error:
        raise KeyboardInterrupt from error


def _run_anywhere(run: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context.run, asyncio.run, run()).result()


async def _run_flow(experiment: ResolvedExperiment, parameters: dict[str, Any]) -> dict[str, Any]:
    from prefect.context import SyncClientContext

    from flows.experiment_flow import experiment as flow

    HANDED_OVER.set(experiment)  # ends with this task
    with SyncClientContext():  # else Prefect makes client after client, which load certificates
        result: dict[str, Any] = await flow(**parameters)
    return result


def _make_home(home: Path) -> None:
    """Make the folder of Prefect's database, without whose parents its server never starts."""
    try:
        (home / "prefect").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{home}: cannot be made or written ({error}). Choose another place with the setting"
            " `home`."
        ) from error
