"""Run and resume experiments from Python: prepares the process for Prefect and runs the flow."""

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
    hide_tracebacks,
    log_to_prefect,
    prepare_environment,
)
from flows.process.progress import ProgressStyle, shown_progress
from flows.runs.preflight import check_experiment
from flows.runs.resolve import (
    RESOLVED_EXPERIMENT,
    ArmChanges,
    Parameters,
    ResolvedExperiment,
    resolve,
    resolve_run,
)
from flows.runs.result import ExperimentResult
from ratchet.errors import RatchetError, StageFailedError, StoreError
from ratchet.parameters.settings import ExperimentSettings
from trainers.progress import describe

_Result = TypeVar("_Result")


def run_experiment(
    hyper_params: Parameters,
    settings: ExperimentSettings | None = None,
    *,
    arms: ArmChanges | None = None,
    name: str | None = None,
    force: bool = False,
) -> ExperimentResult:
    """Run or resume an experiment: cached stages are reused, the others are computed.

    Parameters
    ----------
    hyper_params
        Parameters that determine the result, or the path of an experiment file.
    settings
        Settings of where and how it runs, which do not affect the result; by default the file's.
    arms
        Further experiments of the same run by name: complete parameters, or changes to the main
        arm's, nested or dotted. A file's arms run too.
    name
        The experiment's name, by default the file's or "experiment"; the run's id is derived from
        it and the parameters, unless the settings contain an id.
    force
        Recompute every stage even if cached.

    Raises
    ------
    RatchetError
        The error of a failed stage, if it is one of Ratchet's.
    StageFailedError
        If a stage failed with another error; the message contains the command to resume.
    """
    experiment = resolve(hyper_params, settings, arms, name=name)
    return run_resolved(experiment, experiment.settings.progress, force=force)


def resume_experiment(
    run: str, settings: ExperimentSettings | None = None, *, runs: str | None = None
) -> ExperimentResult:
    """Resume a run, reusing its finished stages even if code has changed.

    Parameters
    ----------
    run
        The run's id, a prefix of it, or its folder.
    settings
        Settings that replace the run's.
    runs
        The folder of all runs; by default ``settings.runs``.

    Raises
    ------
    RunNotFoundError
        If the run does not exist.
    """
    base = settings or ExperimentSettings()
    experiment = resolve_run(run, settings, runs or base.runs)
    return run_resolved(experiment, experiment.settings.progress)


def run_resolved(
    experiment: ResolvedExperiment, progress: ProgressStyle = "none", *, force: bool = False
) -> ExperimentResult:
    """Run a resolved experiment with progress shown; errors as :func:`run_experiment`."""
    count = None if force else partial(count_remaining, experiment)
    with shown_progress(progress, count):
        describe("Starting Prefect")
        prepare_process(experiment.settings)  # the server starts while keys are computed
        check_experiment(experiment)
        if not force:
            experiment.check_stored_stages()
        return _run(experiment, force=force)


def count_remaining(experiment: ResolvedExperiment) -> Mapping[str, int]:
    """Count the steps to compute, by kind of stage; imports torch."""
    from flows.planning.plan import remaining_steps

    return remaining_steps(experiment)


def _run(experiment: ResolvedExperiment, *, force: bool) -> ExperimentResult:
    if experiment.fork is not None:  # before the flow run, which may be retried without this
        experiment.fork.write(experiment.run_path)
    try:
        import_module("flows.experiment_flow")  # takes seconds, in which the server starts
        temporary_server.ensure(experiment.settings.home)
        log_to_prefect()
        hide_tracebacks()
        return ExperimentResult.from_dict(run_to_end(lambda: _run_flow(experiment, force)))
    except RatchetError:
        raise
    except Exception as error:
        run_id = experiment.run_id
        raise StageFailedError(
            f"run {run_id} failed: {type(error).__name__}: {error}\nFinished stages are stored."
            f" Resume with `ratchet resume {run_id}`, or with the same command."
        ) from error


def prepare_process(settings: ExperimentSettings) -> None:
    """Prepare the process for Prefect, which is imported later, and launch its server.

    Raises StoreError if the home folder, whose parent folders the server does not create, cannot
    be created.
    """
    home = Path(settings.home)
    try:
        (home / "prefect").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{home}: cannot be created or written ({error}). Choose another folder with the"
            " setting `home`."
        ) from error
    prepare_environment(settings.home, settings.num_threads)
    temporary_server.launch(settings.home)


def run_to_end(run: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a coroutine as :func:`run_anywhere` for Prefect.

    SIGTERM raises KeyboardInterrupt, like Ctrl-C; so does a final state that was set in Prefect,
    with the reason.
    """
    from prefect.exceptions import TerminationSignal

    from flows.runs.pause_and_cancel import EndedInPrefect, FlowRunInterrupted

    try:
        return run_anywhere(run)
    except (KeyboardInterrupt, TerminationSignal, FlowRunInterrupted) as error:
        cause: BaseException | None = error  # Prefect's signal may follow EndedInPrefect
        while cause is not None and not isinstance(cause, EndedInPrefect):
            cause = cause.__cause__ or cause.__context__
        raise KeyboardInterrupt("" if cause is None else str(cause)) from error


def run_anywhere(run: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run a coroutine, in a separate thread if an event loop is running (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context.run, asyncio.run, run()).result()


async def _run_flow(experiment: ResolvedExperiment, force: bool) -> dict[str, Any]:
    from prefect.context import SyncClientContext

    from flows.experiment_flow import experiment as flow

    RESOLVED_EXPERIMENT.set(experiment)  # until this task ends
    with SyncClientContext():  # else Prefect creates many clients, which load certificates
        result: dict[str, Any] = await flow(**experiment.flow_parameters(), force=force)
    return result
