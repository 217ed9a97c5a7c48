"""Runner that executes sweep members as flow runs of a Prefect work pool."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    WorkerFilter,
    WorkerFilterStatus,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.client.schemas.sorting import ArtifactSort
from prefect.deployments.flow_runs import arun_deployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling, Crashed

from flows.process.flow_runs import OFFLINE, is_lost_before_start, is_pending
from flows.process.heartbeats import HEARTBEAT_VARIABLES
from flows.runners.base import Answer, Request
from ratchet.errors import ParameterError, StageFailedError, WorkerDiedError, nearest
from trainers.progress import describe

if TYPE_CHECKING:
    from uuid import UUID

    from ratchet.parameters.settings import ExperimentSettings

RESULT = "ratchet-result"
"""Type of the artifact with a member's result."""
_POLL_SECONDS = 2.0
_MAX_PARALLEL = 1000


class WorkPool:
    """Executes each request through a deployment; the pool limits the number of parallel runs."""

    def __init__(self, deployment: UUID, slots: int, pool: str) -> None:
        self.slots = slots
        self._pool = pool
        self._deployment = deployment
        self._free = asyncio.Semaphore(slots)

    async def submit(self, request: Request) -> Answer:
        """Run a member; see :class:`flows.runners.base.Runner`."""
        async with self._free:
            parameters = request["parameters"]
            creation: asyncio.Future[FlowRun] = asyncio.ensure_future(
                arun_deployment(
                    self._deployment,
                    parameters={"parameters": parameters},
                    flow_run_name=parameters["settings"]["run_id"],
                    timeout=0,
                )
            )
            try:
                run = await asyncio.shield(creation)
                while run.state is None or not run.state.is_final():
                    await asyncio.sleep(_POLL_SECONDS)
                    run = await self._read(run.id)
            except asyncio.CancelledError:
                await asyncio.shield(_cancel(creation))
                raise
        return await _result(run)

    async def _read(self, flow_run_id: UUID) -> FlowRun:
        """Read a flow run; crash it if its worker was lost before it started."""
        async with get_client() as client:
            run = await client.read_flow_run(flow_run_id)
            if not is_pending(run):
                return run
            workers = await client.read_workers_for_work_pool(self._pool, OFFLINE)
            if not is_lost_before_start(run, workers):
                return run
            message = "Its worker went offline before it started."
            await client.set_flow_run_state(run.id, Crashed(message=message))
            return await client.read_flow_run(flow_run_id)


async def _result(run: FlowRun) -> Answer:
    """Return the result of a finished flow run from its artifact; raise if it did not complete."""
    assert run.state is not None
    message = run.state.message or ""
    if run.state.is_completed():
        async with get_client() as client:
            artifacts = await client.read_artifacts(
                artifact_filter=ArtifactFilter(
                    flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]),
                    type=ArtifactFilterType(any_=[RESULT]),
                ),
                sort=ArtifactSort.CREATED_DESC,
                limit=1,  # a retried flow run has several
            )
        if not artifacts:
            raise StageFailedError(
                f"flow run {run.name} has no result: its worker has an earlier version of Ratchet."
                " Install the same version there, and repeat the command."
            )
        answer: Answer = json.loads(str(artifacts[0].data))
        return answer
    if run.state.type is StateType.CRASHED:
        raise WorkerDiedError(f"flow run {run.name} crashed: {message}")
    raise StageFailedError(f"flow run {run.name} is {run.state.name}: {message}")


async def _cancel(creation: asyncio.Future[FlowRun]) -> None:
    """Cancel a flow run, including one whose creation is in progress."""
    run = await creation
    async with get_client() as client:
        await client.set_flow_run_state(run.id, Cancelling())


async def open_work_pool(settings: ExperimentSettings) -> WorkPool:
    """Register the members' deployment; ParameterError if the pool does not exist."""
    name, api_url = settings.work_pool, PREFECT_API_URL.value()
    async with get_client() as client:
        try:
            await client.read_work_pool(name)
        except ObjectNotFound as error:
            pools = [pool.name for pool in await client.read_work_pools()]
            raise ParameterError(
                f"settings.work_pool: the Prefect server at {api_url} has no {name!r}."
                f"{nearest(name, pools) if pools else ' It has no work pools.'} `ratchet up` and"
                " `ratchet deploy` create the pool 'ratchet' on this machine; `prefect work-pool"
                " create NAME --type process` creates others."
            ) from error
        online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
        workers = await client.read_workers_for_work_pool(name, worker_filter=online)
        if not workers:
            describe(
                f"Work pool {name} has no worker. Start one: `prefect worker start --pool {name}`"
            )
        flow_id = await client.create_flow_from_name("experiment-member")
        deployment = await client.create_deployment(
            flow_id,
            name=f"member-{name}",
            work_pool_name=name,
            entrypoint="flows.runners.member_flow.experiment_member",
            job_variables={"env": HEARTBEAT_VARIABLES},
            enforce_parameter_schema=False,
        )
    return WorkPool(deployment, settings.max_parallel or _MAX_PARALLEL, name)
