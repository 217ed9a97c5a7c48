"""Prefect tasks: of each stage, of each fine-tuning job that it awaits, and of saving a run.

The store decides which stages are done; Prefect shows cached ones as "Cached". The only module of
``tasks`` that imports Prefect.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.states import Completed, Failed

from ratchet.errors import ReportError, TrackingError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.syntax import PARSER_LOCK
from tasks.save import SavedCopy
from tasks.stages.calls import StageCall, StageOutcome
from tasks.stages.decorator import Stage, stage_log_context
from tasks.stages.driver import attempt_stage
from tasks.stages.failures import could_succeed
from tasks.stages.session import BaseSession, FinishedTask, TaskGraph
from trainers.text.jobs import JobAwaiting

logger = logging.getLogger(__name__)


async def execute_as_task(
    stage: Stage[Any], call: StageCall, session: BaseSession, force: bool
) -> StageOutcome:
    """Return the stored stage or compute it, as a task of the running flow.

    With ``force``, recompute it even if it is stored. After ``settings.retries`` retries, raises
    the error of the last attempt.
    """
    settings = session.settings
    one = _stage_task(stage.name, settings.retries, settings.retry_delay_seconds)
    with stage_log_context(call, session):
        request = _Request(stage, call, session, force)
        state: State[Any] = await one(
            request, wait_for=_tasks_before(call, session.tasks), return_state=True
        )
    session.tasks.done[call.key] = await state.aresult(raise_on_failure=True)
    if call.kind.span == "iterations":
        session.tasks.trained[call.iteration] = call.key
    assert request.outcome is not None  # the task has completed
    return request.outcome


def _tasks_before(call: StageCall, tasks: TaskGraph) -> list[FinishedTask]:
    """Return the tasks that a call follows directly: the edges of Prefect's graph."""
    tasks.inputs[call.key] = inputs = set(call.inputs.values())
    if call.kind.span == "iterations" and call.start_iteration in tasks.trained:
        inputs.add(tasks.trained[call.start_iteration])  # its key only contains the first state
    further = {key for near in inputs for key in tasks.inputs.get(str(near), ())}
    return [tasks.done[key] for key in sorted(tasks.done.keys() & inputs - further)]


class _Request:
    """Carries a stage into its task and the outcome out; opaque to Prefect."""

    def __init__(
        self, stage: Stage[Any], call: StageCall, session: BaseSession, force: bool
    ) -> None:
        self.stage, self.call, self.session, self.force = stage, call, session, force
        self.outcome: StageOutcome | None = None
        self.attempts = 0


@task(
    task_run_name=lambda parameters: parameters["request"].call.label,  # type: ignore[arg-type]
    cache_policy=NO_CACHE,
    persist_result=False,
    log_prints=False,
)
async def _run_stage(request: _Request) -> State[Any]:
    request.attempts += 1
    outcome = request.outcome = await attempt_stage(
        request.stage, request.call, request.session, request.force, request.attempts
    )
    logger.info("%s: %s", request.call.label, outcome)
    text = str(outcome)
    return Completed(
        name="Cached" if outcome.hit else "Completed",
        message=f"{text[:1].upper()}{text[1:]} ({outcome.manifest.key[:12]}).",
        data=FinishedTask(),
    )


@functools.cache  # creating one parses the function's source
def _stage_task(name: str, retries: int, delay: float) -> Task[..., Any]:
    """Return the task of a kind of stage.

    Without tags: Prefect requests a concurrency slot for each tag, which can take seconds.
    """
    with PARSER_LOCK:
        return _run_stage.with_options(
            name=name,
            retries=retries,
            retry_delay_seconds=delay,
            retry_condition_fn=_is_worth_a_retry,
        )


async def _is_worth_a_retry(task: Any, task_run: TaskRun, state: State[Any]) -> bool:  # noqa: ANN401
    """Return whether another attempt could succeed."""
    try:
        await state.aresult(raise_on_failure=True)
    except Exception as error:  # noqa: BLE001 -- any error of a stage
        return could_succeed(error)
    return True


async def save_as_task(
    copy: SavedCopy, settings: ExperimentSettings, after: Sequence[FinishedTask] = ()
) -> None:
    """Update a run's report or mirror in a task, after the tasks ``after``.

    A mirror or a report that failed does not end the run.
    """
    await _save.with_options(
        task_run_name=f"save {copy.kind}",
        retries=settings.retries if copy.kind == "report" else 0,
        retry_delay_seconds=settings.retry_delay_seconds,
    )(copy, wait_for=after)


@task(name="save", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
async def _save(copy: SavedCopy) -> State[Any]:
    try:
        done = await asyncio.to_thread(copy.update)
    except (TrackingError, ReportError) as error:
        return Completed(name="Behind", message=str(error), data=False)
    return Completed(name="Completed" if done else "Cached", data=done)


@dataclass
class _JobWait:
    """Carries a wait into its task, and the error out; opaque to Prefect."""

    wait: JobAwaiting
    error: Exception | None = None


async def await_job_as_task(call: StageCall, group: str, wait: JobAwaiting) -> None:
    """Wait for a group's job in a task of the running flow, named after the group.

    A failed job only fails its task; the stage decides what follows. Without a running flow,
    wait without a task.
    """
    if TaskRunContext.get() is None:
        await wait()
        return
    name = f"fine-tune {call.arm} {group} {call.iteration}"
    job_wait = _JobWait(wait)
    job_task = _fine_tune_job.with_options(task_run_name=name)
    await job_task(job_wait, return_state=True)  # type: ignore[misc]
    if job_wait.error is not None:
        raise job_wait.error


@task(name="fine_tune_job", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
async def _fine_tune_job(job_wait: _JobWait) -> State[Any]:
    try:
        job = await job_wait.wait()
    except Exception as error:
        job_wait.error = error
        raise
    assert job is not None  # only existing jobs are awaited
    reason = f": {job.error}" if job.error else ""
    message = f"{job.id} {job.status}{reason}."
    return (Failed if job.is_lost else Completed)(message=message)
