"""The ``experiment`` flow: resolve → open the run → run its arms → save.

:func:`run_arm` runs an arm: build scenario → initial state → iterations → tests. The keys of its
family (:mod:`tasks.tensordict.keys`, :mod:`tasks.text.keys`, :mod:`tasks.language.keys`) define the
stages of each step, and each stage is a task. The store decides which are done, so that a retried,
resumed or restarted flow run continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from flows.process.heartbeats import END_HOOKS
from flows.runs.pause_and_cancel import (
    cancelled_when_interrupted,
    classify_outcome,
    handle_pause_and_cancel,
)
from flows.runs.prefect_artifacts import observed
from flows.runs.resolve import RESOLVED_EXPERIMENT, ResolvedExperiment, resolve_parameters
from flows.runs.setup import ExperimentRun, open_run
from ratchet.errors import RunPrunedError
from ratchet.tracking.logs import log_context
from tasks.save import SavedCopy
from tasks.stages.calls import StageCall, StageOutcome
from tasks.stages.decorator import Stage
from tasks.stages.driver import Execute, StageDriver, in_thread, together
from tasks.stages.families import AnySession
from tasks.stages.prefect_tasks import await_job_as_task, execute_as_task, save_as_task
from tasks.stages.sequence import StoredStageLayout
from tasks.stages.session import BaseSession
from tasks.text.session import TextArmSession
from trainers.progress import show, tee_progress


def _flow_run_name() -> str:
    """Name a flow run after its run, if the settings contain its id."""
    settings = flow_run.get_parameters().get("settings") or {}
    return str(settings.get("run_id") or flow_run.get_name())


@flow(
    name="experiment",
    flow_run_name=_flow_run_name,
    persist_result=False,
    validate_parameters=False,
    **END_HOOKS,
)
async def experiment(
    hyper_params: dict[str, Any],
    settings: dict[str, Any] | None = None,
    arms: dict[str, dict[str, Any]] | None = None,
    name: str = "experiment",
    keep: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Run an experiment, starting with the first stage that is not stored.

    Parameters
    ----------
    hyper_params
        Parameters that affect the result.
    settings
        Settings that do not, such as locations.
    arms
        Further experiments of the same run for comparison, as changes to ``hyper_params``.
    name
        The experiment's name, the prefix of the run's id.
    keep
        Reuse the run's finished stages even if their code has changed.
    force
        Recompute every stage even if it is stored.
    """
    with cancelled_when_interrupted():
        resolved = RESOLVED_EXPERIMENT.get()
        if resolved is None or resolved.run_id != (settings or {}).get("run_id"):
            resolved = await asyncio.to_thread(
                resolve_parameters, hyper_params, settings, arms, name=name, keep=keep
            )
        return await run_resolved(resolved, force=force)


async def run_resolved(experiment: ResolvedExperiment, *, force: bool = False) -> dict[str, Any]:
    """Run a resolved experiment inside the running flow; parameters as :func:`experiment`."""
    flow_run_id = flow_run.get_id()
    if not force and RESOLVED_EXPERIMENT.get() is not experiment:  # otherwise already checked
        await asyncio.to_thread(experiment.check_stored_stages)
    with log_context(run=experiment.run_id), suppress(RunPrunedError):  # no failure
        run = await asyncio.to_thread(open_run, experiment, flow_run_id)
        async with observed(run), _saved_to_mirrors(run):
            with tee_progress(run.live):
                await _run_arms(run, force=force)
                await handle_pause_and_cancel(run)
            run.folder.set_status("completed")  # the report contains it
            report = SavedCopy(run.folder, "report")
            await save_as_task(report, experiment.settings, run.last_tasks())
    return run.result(flow_run_id).to_dict()


async def _run_arms(run: ExperimentRun, *, force: bool) -> None:
    """Run the arms sequentially, or concurrently if the settings select a parallel runner.

    If an arm fails, concurrent arms still run to their end. Arms share common stages, so that each
    is recomputed once per run; recomputed arms run sequentially, since stages are removed first.
    """
    settings = run.experiment.settings
    recomputed: set[str] | None = set() if force else None

    async def execute(
        stage: Stage[Any], call: StageCall, session: BaseSession, force: bool
    ) -> StageOutcome:
        await handle_pause_and_cancel(run)
        return await execute_as_task(stage, call, session, force)

    for session in run.sessions:
        if isinstance(session, TextArmSession):
            session.await_job = await_job_as_task
    if force or settings.runner in ("inline", "work_pool") or len(run.sessions) == 1:
        for session in run.sessions:
            await run_arm(run, session, execute, recomputed)
        return
    from flows.runners.factory import open_runner
    from flows.runners.stage_dispatch import RemoteStageExecutor

    async with open_runner(settings, run.folder.path, len(run.sessions)) as runner:
        remote_executor = RemoteStageExecutor(runner)
        for session in run.sessions:
            remote_executor.take(session)
        await together([run_arm(run, session, execute) for session in run.sessions])


async def run_arm(
    run: ExperimentRun,
    session: AnySession,
    execute: Execute,
    recomputed: set[str] | None = None,
) -> None:
    """Run the stages of an arm, in the order of :meth:`tasks.stages.keys.BaseKeys.stages`.

    ``execute`` executes a stage. ``recomputed``, if given, are the keys of the stages that the run
    has recomputed so far; all others are recomputed and added.
    """
    keys = session.keys
    layout = StoredStageLayout(session.store, session.settings, recomputed)
    stages = StageDriver(session, execute, run.recorder.stage_finished, recomputed)

    await stages.run([keys.build_scenario()])
    await stages.run(keys.initial_stages())  # initial_state, pretrain, imitate
    async for iteration in in_thread(keys.iterations(layout)):
        await stages.run(iteration)  # train; of chat models sample_rollouts, log_stats, …
    run.recorder.final_state(keys)
    await stages.run(keys.stages_of_trainer())
    await stages.run(keys.tests(layout))
    show({})  # clear the arm's metrics


@asynccontextmanager
async def _saved_to_mirrors(run: ExperimentRun) -> AsyncIterator[None]:
    """Record how the run ended, in all cases, and save it to its mirrors."""
    try:
        yield
    except BaseException as error:
        status, message = classify_outcome(run.folder, error)
        run.folder.set_status(status, message)
        run.folder.log_event(status, message)
        raise
    finally:
        run.close()
        for kind, uri in run.mirrors.items():
            copy = SavedCopy(run.folder, kind, uri)
            await save_as_task(copy, run.experiment.settings, run.last_tasks())
