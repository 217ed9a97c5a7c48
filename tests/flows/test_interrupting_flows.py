"""An interrupted flow run is Cancelled in Prefect, unless a different flow contains it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect import flow, get_client
from prefect.runtime import flow_run
from prefect.states import Failed, State

from flows import sweep_flow
from flows.runs.pause_and_cancel import FlowRunInterrupted, cancelled_when_interrupted

pytestmark = pytest.mark.usefixtures("prefect_server")
started: dict[str, str] = {}


@flow
async def experiment() -> None:
    started["experiment"] = str(flow_run.get_id())
    with cancelled_when_interrupted():
        raise asyncio.CancelledError


@flow
async def pipeline() -> None:
    started["pipeline"] = str(flow_run.get_id())
    await experiment()


def states() -> dict[str, str | None]:
    with get_client(sync_client=True) as client:
        return {name: client.read_flow_run(run).state_name for name, run in started.items()}


def test_an_interrupted_flow_run_is_cancelled():
    started.clear()
    with pytest.raises(FlowRunInterrupted):
        asyncio.run(experiment())
    assert states() == {"experiment": "Cancelled"}


def test_a_flow_of_another_project_ends_with_its_interrupted_subflow():
    started.clear()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(pipeline())
    assert states() == {"pipeline": "Crashed", "experiment": "Crashed"}


def test_a_workers_flow_run_is_left_to_the_worker(monkeypatch):
    started.clear()
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "1")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(experiment())
    assert states() == {"experiment": "Crashed"}


def test_a_member_that_fails_because_of_an_interruption_ends_the_sweep(monkeypatch):
    """A failed member would otherwise be followed by the next one."""

    async def member_flow(*, return_state: bool) -> State[Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return Failed(message="an error while the interruption was recorded")
        raise AssertionError(return_state)

    async def interrupted() -> None:
        task = asyncio.ensure_future(sweep_flow._run_inline(cast(Any, member)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    member = SimpleNamespace(experiment=SimpleNamespace(flow_parameters=dict))
    monkeypatch.setattr(sweep_flow, "experiment", member_flow)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())
