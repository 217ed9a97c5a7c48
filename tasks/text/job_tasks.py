"""A fine-tune job as a task of its own: Prefect shows each, while all are awaited at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.states import Completed, Failed

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from ratchet.language_models.fine_tune_jobs import FineTuneJob
    from tasks.stages.calls import StageCall
    from trainers.text.jobs import JobAwaiting


@dataclass
class _Waiting:
    """Carries what waits into the task, and its error out; no data that Prefect would look into."""

    wait: JobAwaiting
    error: Exception | None = None


async def await_in_task(call: StageCall, group: str, waiting: JobAwaiting) -> None:
    """Wait for a group's job in a task, named for the group, of the flow that is running.

    A job that fails fails its task and nothing else: what that means is the stage's to say. Where
    no flow is running, there is no task.
    """
    if TaskRunContext.get() is None:
        await waiting()
        return
    name = f"fine-tune {call.arm} {group} {call.iteration}"
    one = _fine_tune_job.with_options(task_run_name=name)
    carried = _Waiting(waiting)
    await one(carried, return_state=True)  # type: ignore[misc]
    if carried.error is not None:
        raise carried.error


@task(name="fine_tune_job", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
async def _fine_tune_job(waiting: _Waiting) -> State[Any]:
    try:
        job = await waiting.wait()
    except Exception as error:
        waiting.error = error
        raise
    assert job is not None  # only jobs that were made are waited for
    return Failed(message=_told(job)) if job.is_lost else Completed(message=_told(job))


def _told(job: FineTuneJob) -> str:
    reason = f": {job.error}" if job.error else ""
    return f"{job.id} {job.status}{reason}."
