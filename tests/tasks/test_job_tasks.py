"""Each group's fine-tuning job is a separate task, and all are awaited concurrently."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.runtime import flow_run

from ratchet.language_models.fine_tune_jobs import FineTuneJob
from tasks.stages.prefect_tasks import await_job_as_task

JOBS = {
    "prover": FineTuneJob("ftjob-1", "succeeded"),
    "verifier": FineTuneJob("ftjob-2", "failed", error="too few examples"),
}


async def waited(jobs: dict[str, FineTuneJob], call: Any) -> None:
    """Wait for jobs that all end as soon as all are awaited; fails if they are not."""
    barrier = asyncio.Barrier(len(jobs))

    async def wait(job: FineTuneJob) -> FineTuneJob:
        await asyncio.wait_for(barrier.wait(), 60)
        return job

    await asyncio.gather(
        *(await_job_as_task(call, name, lambda job=job: wait(job)) for name, job in jobs.items())
    )


CALL = SimpleNamespace(arm="main", iteration=3)


def test_jobs_are_awaited_without_tasks_outside_a_flow() -> None:
    asyncio.run(waited(JOBS, CALL))


def test_errors_of_waiting_are_raised() -> None:
    async def wait() -> FineTuneJob:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(await_job_as_task(CALL, "prover", wait))  # type: ignore[arg-type]


@task(cache_policy=NO_CACHE, persist_result=False)
async def stage() -> None:
    """Wait for the jobs as a stage does: in a thread with a separate event loop."""
    await asyncio.to_thread(asyncio.run, waited(JOBS, CALL))


@flow(persist_result=False)
async def play() -> str:
    await stage()
    return str(flow_run.get_id())


async def task_runs_of(flow_run_id: str) -> dict[str, TaskRun]:
    mine = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run_id)]))
    async with get_client() as client:
        for _ in range(100):  # the server registers task runs with a delay
            found = await client.read_task_runs(flow_run_filter=mine)
            if len(found) == 3 and all(each.state and each.state.is_final() for each in found):
                return {each.name: each for each in found}
            await asyncio.sleep(0.3)
    raise AssertionError([each.name for each in found])


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_each_job_is_a_task_with_the_jobs_outcome() -> None:
    found = asyncio.run(task_runs_of(asyncio.run(play())))
    succeeded, failed = (found[f"fine-tune main {name} 3"].state for name in JOBS)
    assert succeeded is not None
    assert (succeeded.is_completed(), succeeded.message) == (True, "ftjob-1 succeeded.")
    assert failed is not None
    assert (failed.is_failed(), failed.message) == (True, "ftjob-2 failed: too few examples.")
