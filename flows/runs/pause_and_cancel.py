"""Pausing, suspending and cancelling runs, and the status of a run that ends early.

A run checks its flow run's state between two stages; a running stage always finishes, since it may
cost money. A *suspended* run of a worker exits through Prefect, and *Resume* starts it again. A
*paused* run waits in its process, with its sessions open, until it is resumed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
from prefect.client.schemas.objects import StateType
from prefect.exceptions import Abort, Pause, TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled, Cancelling

from flows.process.flow_runs import find_flow_run, read_flow_run, set_state
from flows.runs.resolve import RESOLVED_EXPERIMENT
from ratchet.errors import RunPrunedError, RunStateError
from ratchet.tracking.run_lock import RunOwner, runners

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

    from flows.runs.setup import ExperimentRun
    from ratchet.tracking.manifest import RunStatus
    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

SECONDS = 1.0
"""Minimum interval between requests for the flow run's state."""
_ENDED = (StateType.CANCELLING, StateType.CANCELLED, StateType.FAILED, StateType.CRASHED)
WORKER_SECONDS = 60.0
STATE_SECONDS = 15.0
SIGNALS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 30.0))
"""Signals sent to a process, each with the seconds to wait for its exit.

SIGINT is first, since a notebook's kernel survives it; background processes of a shell ignore it.
"""
_INTERRUPTED = "interrupted by Ctrl-C or a signal; finished stages are stored"


class FlowRunInterrupted(Abort):
    """A flow run was interrupted; Prefect's engine keeps ``state``, which the server has."""

    def __init__(self, state: State[object]) -> None:
        super().__init__(state.message)
        self.state = state


@contextmanager
def cancelled_when_interrupted() -> Iterator[None]:
    """Set the current flow run's state to Cancelled when Ctrl-C or a signal interrupts it.

    Prefect would report a crash. Flow runs of workers are left to these, which know the reason,
    and subflows of other projects' flows to these, which would not end. Raises FlowRunInterrupted
    if the flow run was interrupted and the server has its final state.
    """
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError, TerminationSignal, Abort) as error:
        flow_run_id = flow_run.get_id()
        is_foreign = flow_run.get_parent_flow_run_id() and RESOLVED_EXPERIMENT.get() is None
        if flow_run_id is None or is_foreign or os.environ.get("PREFECT__FLOW_RUN_ID"):
            raise
        state = _cancel_flow_run(find_flow_run(flow_run_id))
        if state is None:
            raise
        raise FlowRunInterrupted(state) from error


def cancel_flow_run_of(folder: RunFolder) -> None:
    """Set the last flow run of a run without a process to Cancelled; workers set those of pools."""
    run = read_flow_run(folder)
    if run is not None and run.work_pool_name is None:
        _cancel_flow_run(run)


def _cancel_flow_run(run: FlowRun | None) -> State[object] | None:
    """Set a flow run to Cancelled unless it has ended; return its state if the server responds.

    The requests are synchronous: an interruption has also cancelled the event loop's tasks.
    """
    if run is None or run.state is None or run.state.is_final():
        return None if run is None else run.state
    state: State[object] = Cancelled(message=_INTERRUPTED)
    try:
        set_state(run, state)
    except httpx.HTTPError as error:
        logger.warning("could not set flow run %s to Cancelled: %s", run.name, error)
        return None
    return state


class EndedInPrefect(TerminationSignal):
    """A flow run was set to a final state in Prefect while its process ran it."""

    def __init__(self, state: State[object]) -> None:
        super().__init__(signal.SIGTERM)
        self.state = state

    def __str__(self) -> str:
        reason = (self.state.message or "no reason was recorded").rstrip(".")
        return f"Prefect's server has set its state to {self.state.name}: {reason}."


async def handle_pause_and_cancel(run: ExperimentRun) -> None:
    """Wait while the flow run is paused; end the run if it was cancelled.

    Raises EndedInPrefect if the flow run, or the sweep that contains it, was ended.
    """
    if time.monotonic() - run.last_state_check < SECONDS or not PREFECT_UI_URL.value():
        return
    ids = dict.fromkeys(filter(None, (flow_run.get_id(), flow_run.get_root_flow_run_id())))
    states = await _states(ids)
    if any(map(_waits, states)):
        text = "paused in Prefect; it continues when it is resumed there."
        run.folder.log_event("paused", text)
        logger.info("run %s is %s", run.folder.run_id, text)
        while any(map(_waits, states)):
            await asyncio.sleep(SECONDS)
            states = await _states(ids)
        run.folder.log_event("resumed", "resumed in Prefect.")
        logger.info("run %s continues", run.folder.run_id)
    run.last_state_check = time.monotonic()
    ended = next((state for state in states if state.type in _ENDED), None)
    if ended is not None:
        raise EndedInPrefect(ended)


def _waits(state: State[object]) -> bool:
    """Return whether a flow run is paused and its own process will continue it."""
    return state.type is StateType.PAUSED and not state.state_details.pause_reschedule


async def _states(ids: Iterable[str]) -> list[State[object]]:
    """Read the states of flow runs; none if the server is unreachable."""
    runs = [await asyncio.to_thread(find_flow_run, each) for each in ids]
    return [run.state for run in runs if run is not None and run.state is not None]


def cancel_run(folder: RunFolder) -> None:
    """Cancel a run from another process and wait until no process runs it.

    A worker's run is cancelled through Prefect; a process of this machine receives SIGINT, then
    SIGTERM. Finished stages are stored, so that the run can be resumed.
    """
    if not runners(folder.path):
        raise RunStateError(f"run {folder.run_id} is not running: it is {folder.status}.")
    folder.set_status("cancelled", f"cancelled. Resume with `ratchet resume {folder.run_id}`.")
    if not (_cancel_at_worker(folder) and _has_ended(folder, WORKER_SECONDS)):
        for number, seconds in SIGNALS:
            _signal(runners(folder.path), number)
            if _has_ended(folder, seconds):
                break
    left = runners(folder.path)
    if left:
        names = ", ".join(f"process {runner.pid} on {runner.host}" for runner in left)
        raise RunStateError(
            f"run {folder.run_id} is still running: {names} received a signal and has not exited."
            " End it there with `kill -9`; finished stages are stored."
        )
    if folder.manifest.status == "completed":
        raise RunStateError(f"run {folder.run_id} was completed before it was cancelled.")
    _mark_cancelled(folder)


def _has_ended(folder: RunFolder, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while runners(folder.path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _signal(processes: list[RunOwner], number: signal.Signals) -> None:
    for runner in processes:
        if runner.pid is not None and runner.host == socket.gethostname():
            try:
                os.kill(runner.pid, number)
            except ProcessLookupError:  # it has exited
                continue
            except PermissionError as error:
                raise RunStateError(
                    f"process {runner.pid} belongs to another user: {error}."
                ) from error


def _cancel_at_worker(folder: RunFolder) -> bool:
    """Cancel the run through Prefect if a worker runs it; return whether one does."""
    run = read_flow_run(folder)
    if run is None or run.work_pool_name is None:
        return False
    if run.state is None or run.state.type is not StateType.RUNNING:
        return False
    set_state(run, Cancelling())
    return True


def _mark_cancelled(folder: RunFolder) -> None:
    """Set the flow run's final state to Cancelled instead of Crashed."""
    deadline = time.monotonic() + STATE_SECONDS
    while (run := read_flow_run(folder)) is not None and run.state is not None:
        if run.state.is_final() or time.monotonic() > deadline:
            break
        time.sleep(0.2)  # its process, or the worker, is about to set a final state
    if run is None or run.state is None:
        return
    if not run.state.is_cancelled() and not run.state.is_completed():
        set_state(run, Cancelled(message="cancelled by `ratchet cancel`"))


def classify_outcome(folder: RunFolder, error: BaseException) -> tuple[RunStatus, str]:
    """Return the status and message of a run that was ended by an error.

    Only an ``Exception`` is a failure; Ctrl-C and signals raise other errors.
    """
    advice = f"Resume with `ratchet resume {folder.run_id}`."
    if isinstance(error, RunPrunedError):
        return "pruned", f"{error} {advice}"
    if isinstance(error, Exception):
        return "failed", f"{type(error).__name__}: {error} {advice}"
    if isinstance(error, Pause):
        return "interrupted", f"suspended in Prefect. Resume it there, or: {advice}"
    if folder.manifest.status == "cancelled" or _is_cancelled_in_prefect():
        return "cancelled", f"cancelled. {advice}"
    if isinstance(error, EndedInPrefect):
        return "interrupted", f"interrupted: {error} {advice}"
    return "interrupted", f"interrupted ({type(error).__name__}). {advice}"


def _is_cancelled_in_prefect() -> bool:
    """Return whether the flow run was cancelled, according to its server.

    The request is synchronous: the interruption has also cancelled the event loop's tasks.
    """
    flow_run_id = flow_run.get_id()
    current = find_flow_run(flow_run_id) if flow_run_id is not None else None
    state = current.state if current is not None else None
    return state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED)
