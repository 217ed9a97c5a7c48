"""Each group's fine-tune job is a task of its own, and all are awaited at once."""

from __future__ import annotations

import asyncio
import time
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
from tasks.text.job_tasks import await_in_task

SECONDS = 0.5
JOBS = {
    "prover": FineTuneJob("ftjob-1", "succeeded"),
    "verifier": FineTuneJob("ftjob-2", "failed", error="too few examples"),
}


async def waited(jobs: dict[str, FineTuneJob], call: Any) -> list[float]:
    """Wait for some jobs at once, SECONDS each; return when each wait began."""
    begun: list[float] = []

    async def wait(job: FineTuneJob) -> FineTuneJob:
        begun.append(time.monotonic())
        await asyncio.sleep(SECONDS)
        return job

    await asyncio.gather(
        *(await_in_task(call, name, lambda job=job: wait(job)) for name, job in jobs.items())
    )
    return begun


CALL = SimpleNamespace(arm="main", iteration=3)


def test_where_no_flow_runs_jobs_are_only_awaited() -> None:
    begun = asyncio.run(waited(JOBS, CALL))
    assert max(begun) - min(begun) < SECONDS


def test_what_waiting_ends_with_is_raised() -> None:
    async def wait() -> FineTuneJob:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(await_in_task(CALL, "prover", wait))  # type: ignore[arg-type]


@task(cache_policy=NO_CACHE, persist_result=False)
async def stage() -> list[float]:
    """Wait for the jobs as a stage does: in a thread, with an event loop of its own."""
    return await asyncio.to_thread(asyncio.run, waited(JOBS, CALL))


@flow(persist_result=False)
async def play() -> tuple[str, list[float]]:
    return str(flow_run.get_id()), await stage()


async def task_runs_of(flow_run_id: str) -> dict[str, TaskRun]:
    mine = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run_id)]))
    async with get_client() as client:
        for _ in range(100):  # the server hears of task runs late
            found = await client.read_task_runs(flow_run_filter=mine)
            if len(found) == 3 and all(each.state and each.state.is_final() for each in found):
                return {each.name: each for each in found}
            await asyncio.sleep(0.3)
    raise AssertionError([each.name for each in found])


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_each_is_a_task_with_the_end_of_its_job() -> None:
    flow_run_id, begun = asyncio.run(play())
    assert max(begun) - min(begun) < SECONDS, "one after the other"
    found = asyncio.run(task_runs_of(flow_run_id))
    succeeded, failed = (found[f"fine-tune main {name} 3"].state for name in JOBS)
    assert succeeded is not None
    assert (succeeded.is_completed(), succeeded.message) == (True, "ftjob-1 succeeded.")
    assert failed is not None
    assert (failed.is_failed(), failed.message) == (True, "ftjob-2 failed: too few examples.")
