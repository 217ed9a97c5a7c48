"""End a run from another process: what it has finished stays, and resuming goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import TYPE_CHECKING

from ratchet.errors import RunStateError
from ratchet.tracking.presence import Runner, runners

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder

WORKER_SECONDS = 60.0
STATE_SECONDS = 15.0
SIGNALS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 30.0))
"""Which signals a process gets, and for how long it is awaited after each.

SIGINT first, which leaves a notebook's kernel alive; what a shell has sent to the background
ignores it.
"""


def cancel_run(folder: RunFolder) -> None:
    """Cancel a run and wait until nobody works on it.

    A worker is asked through Prefect; a process of this machine gets SIGINT, then SIGTERM.

    Raises
    ------
    RunStateError
        If nobody runs it, or it does not end.
    """
    if not runners(folder.path):
        raise RunStateError(f"run {folder.run_id} is not running: it is {folder.status}.")
    folder.set_status("cancelled", f"cancelled. Go on with `ratchet resume {folder.run_id}`.")
    asked = _ask_worker(folder)
    if not (asked and _gone(folder, WORKER_SECONDS)):
        for number, seconds in SIGNALS:
            _signal(runners(folder.path), number)
            if _gone(folder, seconds):
                break
    left = runners(folder.path)
    if left:
        names = ", ".join(f"process {runner.pid} on {runner.host}" for runner in left)
        raise RunStateError(
            f"run {folder.run_id} goes on: {names} has been told to end and has not yet. `kill -9`"
            " there ends it; what is finished is kept."
        )
    if folder.manifest.status == "completed":
        raise RunStateError(f"run {folder.run_id} was completed before it was cancelled.")
    _tell_prefect(folder)


def _gone(folder: RunFolder, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while runners(folder.path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _signal(processes: list[Runner], number: signal.Signals) -> None:
    for runner in processes:
        if runner.pid is not None and runner.host == socket.gethostname():
            try:
                os.kill(runner.pid, number)
            except ProcessLookupError:  # it has ended meanwhile
                continue
            except PermissionError as error:
                raise RunStateError(f"process {runner.pid} is another user's: {error}.") from error


def _ask_worker(folder: RunFolder) -> bool:
    """Ask the worker that runs it, if one does, to end it; return whether there is one."""
    from prefect.client.schemas.objects import StateType
    from prefect.states import Cancelling

    from flows.process.flow_runs import read_flow_run, set_state

    run = read_flow_run(folder)
    if run is None or run.work_pool_name is None:
        return False
    if run.state is None or run.state.type is not StateType.RUNNING:
        return False
    set_state(run, Cancelling())
    return True


def _tell_prefect(folder: RunFolder) -> None:
    """Have Prefect's UI say Cancelled, as the run does, rather than Crashed."""
    from prefect.states import Cancelled

    from flows.process.flow_runs import read_flow_run, set_state

    deadline = time.monotonic() + STATE_SECONDS
    while (run := read_flow_run(folder)) is not None and run.state is not None:
        if run.state.is_final() or time.monotonic() > deadline:
            break
        time.sleep(0.2)  # its process, or the worker, is about to say how it ended
    if run is None or run.state is None:
        return
    if not run.state.is_cancelled() and not run.state.is_completed():
        set_state(run, Cancelled(message="cancelled by `ratchet cancel`"))
