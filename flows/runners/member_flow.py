"""``experiment-member``: the flow of one sweep member in a work pool.

Deployments on Prefect servers store the path of this module as their entry point.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.experiment_flow import run_resolved
from flows.process.flow_runs import record_location
from flows.process.heartbeats import END_HOOKS
from flows.process.messages import outlive_reader
from flows.runners.work_pool import RESULT
from flows.runs.resolve import resolve_parameters
from flows.runs.result import ExperimentResult, summary_line, test_results
from ratchet.tracking.run_folder import RunFolder


@flow(name="experiment-member", persist_result=False, validate_parameters=False, **END_HOOKS)
async def experiment_member(parameters: dict[str, Any]) -> State[Any]:
    """Run or resume an experiment.

    Parameters
    ----------
    parameters
        Parameters of :func:`flows.experiment_flow.experiment`.
    """
    outlive_reader()
    await record_location()
    resolved = await asyncio.to_thread(lambda: resolve_parameters(**parameters))
    result = await run_resolved(resolved)
    # a process that waits on a different machine reads it from the server
    async with get_client() as client:
        await client.create_artifact(
            ArtifactCreate(
                type=RESULT, data=json.dumps(result), flow_run_id=UUID(str(flow_run.get_id()))
            )
        )
    outcome = ExperimentResult.from_dict(result)
    tests = summary_line(test_results(RunFolder(outcome.folder)))
    message = f"Stages: {outcome.stage_counts}.{f' Test: {tests}.' if tests else ''}"
    return Completed(message=message, data=result)
