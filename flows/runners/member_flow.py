"""``experiment-member``: what a work pool runs, one experiment of a sweep."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.experiment_flow import play_experiment
from flows.runs.resolving import resolve_parameters


@flow(name="experiment-member", persist_result=False, validate_parameters=False)
async def experiment_member(parameters: dict[str, Any]) -> State[Any]:
    """Run an experiment from wherever it stands.

    Parameters
    ----------
    parameters
        Those of :func:`flows.experiment_flow.experiment`.
    """
    resolved = await asyncio.to_thread(lambda: resolve_parameters(**parameters))
    result = await play_experiment(resolved)
    # its state is all that whoever waits on another machine is told of a flow run
    return Completed(message=json.dumps(result), data=result)
