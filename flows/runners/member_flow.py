"""``experiment-member``: the flow of one sweep member in a work pool.

Deployments on Prefect servers store the path of this module as their entry point.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.experiment_flow import run_resolved
from flows.process.messages import outlive_reader
from flows.runs.resolve import resolve_parameters


@flow(name="experiment-member", persist_result=False, validate_parameters=False)
async def experiment_member(parameters: dict[str, Any]) -> State[Any]:
    """Run or resume an experiment.

    Parameters
    ----------
    parameters
        Parameters of :func:`flows.experiment_flow.experiment`.
    """
    outlive_reader()
    resolved = await asyncio.to_thread(lambda: resolve_parameters(**parameters))
    result = await run_resolved(resolved)
    # a process that waits on a different machine can read only the flow run's state
    return Completed(message=json.dumps(result), data=result)
