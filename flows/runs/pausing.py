"""Pause, resume and cancel from Prefect's UI or API: a run heeds them between two stages.

A worker's run that is *suspended* ends by itself, through Prefect, and *Resume* starts it again.
One that is *paused* waits here, with all it has built, until it is resumed. What is under way when
somebody asks is finished: it is paid for.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect.client.schemas.objects import StateType
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

from flows.process.flow_runs import find_flow_run

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from flows.runs.setup import ExperimentRun

logger = logging.getLogger(__name__)

SECONDS = 1.0
"""How often the server is asked, at most."""
_ENDED = (StateType.CANCELLING, StateType.CANCELLED, StateType.FAILED, StateType.CRASHED)


async def heed(run: ExperimentRun) -> None:
    """Wait while the flow run is paused; end the run where somebody has cancelled it.

    Raises
    ------
    TerminationSignal
        If the flow run, or the sweep that it belongs to, has been ended meanwhile.
    """
    if time.monotonic() - run.last_heeded < SECONDS or not PREFECT_UI_URL.value():
        return
    ids = dict.fromkeys(filter(None, (flow_run.get_id(), flow_run.get_root_flow_run_id())))
    states = await _states(ids)
    if any(map(_waits, states)):
        told = "paused in Prefect; it goes on when it is resumed there."
        run.folder.log_event("paused", told)
        logger.info("run %s is %s", run.folder.run_id, told)
        while any(map(_waits, states)):
            await asyncio.sleep(SECONDS)
            states = await _states(ids)
        run.folder.log_event("resumed", "resumed in Prefect.")
        logger.info("run %s goes on", run.folder.run_id)
    run.last_heeded = time.monotonic()
    if any(state.type in _ENDED for state in states):
        raise TerminationSignal(signal.SIGTERM)


def _waits(state: State[object]) -> bool:
    """Return whether it is paused, and no other process is to go on with it."""
    return state.type is StateType.PAUSED and not state.state_details.pause_reschedule


async def _states(ids: Iterable[str]) -> list[State[object]]:
    """Read the states of flow runs; a server that does not answer has paused nothing."""
    runs = [await asyncio.to_thread(find_flow_run, each) for each in ids]
    return [run.state for run in runs if run is not None and run.state is not None]
