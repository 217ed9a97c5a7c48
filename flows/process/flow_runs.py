"""Flow runs on a Prefect server: the last one of a run, and orphaned ones without a process.

After a power cut the server still lists a flow run as running. It would occupy its slot of the
deployment's concurrency limit, and block the schedule, forever. Imports Prefect.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkerFilter,
    WorkerFilterStatus,
)
from prefect.client.schemas.objects import FlowRun, StateType, Worker, WorkerStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Crashed
from prefect.types import KeyValueLabels

from ratchet.tracking.boot_clock import boot_id
from ratchet.tracking.environment import author
from ratchet.tracking.run_lock import runners

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

_ACTIVE_STATES = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200
_LABEL = "ratchet."
"""Prefix of the flow runs' labels on the server."""
OFFLINE = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.OFFLINE]))
"""Workers without heartbeats for three of their intervals."""
_WORKER, _WORKER_TYPE = "prefect.worker.name", "prefect.worker.type"
"""Labels of flow runs that a worker has accepted."""


def find_flow_run(flow_run_id: str) -> FlowRun | None:
    """Read a flow run; None if no server responds or has it. Does not wait for a server."""
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            return client.read_flow_run(UUID(flow_run_id))
    except ObjectNotFound:
        return None
    except httpx.HTTPError as error:
        logger.warning("could not query Prefect for flow run %s: %s", flow_run_id, error)
        return None


def states_by_name(names: list[str]) -> dict[str, str]:
    """Return the name of the state of the latest flow run with each name.

    Empty if no server responds; does not wait for one.
    """
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            runs = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=names)),
                sort=FlowRunSort.EXPECTED_START_TIME_ASC,
            )
    except httpx.HTTPError as error:
        logger.debug("could not query Prefect for the states of members: %s", error)
        return {}
    return {run.name: run.state_name or "" for run in runs}


def read_flow_run(folder: RunFolder) -> FlowRun | None:
    """Read the last flow run of a run from the server in use; None if it is not available."""
    ids = folder.manifest.prefect_flow_run_ids
    return find_flow_run(ids[-1]) if ids and os.environ.get("PREFECT_API_URL") else None


def set_state(run: FlowRun, state: State[Any]) -> None:
    """Propose a state of a flow run.

    The server decides on the basis of the current state: it does not crash or cancel a flow run
    that has ended.
    """
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, state)


def end_orphaned_run(run: FlowRun, message: str) -> None:
    """End a flow run whose process is gone: as cancelled if it was cancelling, else as crashed."""
    is_cancelling = run.state is not None and run.state.type is StateType.CANCELLING
    set_state(run, Cancelled(message=message) if is_cancelling else Crashed(message=message))


async def record_location() -> None:
    """Record on the server in which user's process namespace the current flow run is executed."""
    flow_run_id = flow_run.get_id()
    if flow_run_id is None:  # the flow's function is called outside a flow run
        return
    location: KeyValueLabels = {f"{_LABEL}{name}": each for name, each in _location().items()}
    try:
        async with get_client() as client:
            await client.update_flow_run_labels(UUID(flow_run_id), location)
    except httpx.HTTPError as error:
        logger.warning("could not record the location of the flow run: %s", error)


def orphaned_flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """List active flow runs whose process is known to be gone from this machine.

    Flow runs of work pools are known by the location that they record and by an environment
    variable of their process, flow runs started from this machine by the lock in their run folder,
    and flow runs that have not started by their worker, on any machine. All others are skipped:
    only missing heartbeats show that they are lost.
    """
    executing = _flow_runs_of_local_processes()
    active = _active_flow_runs(client)
    pools = {run.work_pool_name for run in active if run.work_pool_name and is_pending(run)}
    offline = {pool: client.read_workers_for_work_pool(pool, OFFLINE) for pool in pools}
    orphaned = []
    for run in active:
        if run.work_pool_name is not None:
            has_ended = _was_here(run) and str(run.id) not in executing
            workers = offline.get(run.work_pool_name, ())
            is_orphaned = has_ended or is_lost_before_start(run, workers)
        else:
            folder = _local_folder(run)
            is_orphaned = folder is not None and not runners(folder)
        if is_orphaned:
            orphaned.append(run)
    return orphaned


def is_pending(run: FlowRun) -> bool:
    """Return whether a worker has accepted a flow run that has not started."""
    return run.state is not None and run.state.is_pending() and _WORKER in run.labels


def is_lost_before_start(run: FlowRun, offline: Iterable[Worker]) -> bool:
    """Return whether a flow run will not start because the worker that accepted it is offline.

    Containers start without their worker; processes do within the time after which it is offline.
    """
    if not is_pending(run) or run.labels[_WORKER] not in {worker.name for worker in offline}:
        return False
    return run.infrastructure_pid is None or run.labels.get(_WORKER_TYPE) == "process"


def crash_orphaned_flow_runs() -> list[str]:
    """Mark orphaned flow runs as crashed, which frees their slots; return their names."""
    with get_client(sync_client=True) as client:
        orphaned = orphaned_flow_runs(client)
    for run in orphaned:
        end_orphaned_run(run, "Its process or worker is gone.")
    return [run.name for run in orphaned]


def _location() -> dict[str, str]:
    """Return where this process is: host, user, boot and process namespace."""
    machine = namespace = ""  # where the system has none
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {
        "host": f"{socket.gethostname()} {machine}".strip(),
        "user": author() or "",
        "boot": boot_id(),
        "processes": namespace,
    }


def _was_here(run: FlowRun) -> bool:
    """Return whether a flow run's process was one of this user that would be visible here."""
    here = _location()
    recorded = {name: run.labels.get(f"{_LABEL}{name}") for name in here}
    names = ["host", "user"]
    if recorded["boot"] == here["boot"]:  # otherwise no process is left, and namespaces are new
        names.append("processes")
    return all(recorded[name] == here[name] for name in names)


def _active_flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=_ACTIVE_STATES))
    active: list[FlowRun] = []
    while page := client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=state), limit=_PAGE, offset=len(active)
    ):
        active += page
    return active


def _flow_runs_of_local_processes() -> set[str]:
    """Return the ids of flow runs that processes of this machine execute for a worker."""
    ids = set()
    for process in psutil.process_iter():
        try:
            is_prefect = any(word.startswith("prefect") for word in process.cmdline())
            flow_run_id = process.environ().get("PREFECT__FLOW_RUN_ID") if is_prefect else None
        except (psutil.Error, OSError):  # it has exited, or belongs to another user
            continue
        if flow_run_id is not None:
            ids.add(flow_run_id)
    return ids


def _local_folder(run: FlowRun) -> Path | None:
    """Return the folder of a run or sweep if its parameters name one on this machine."""
    settings = run.parameters.get("settings")
    if not isinstance(settings, dict):
        return None
    runs, name = settings.get("runs"), run.parameters.get("sweep_name") or settings.get("run_id")
    if not isinstance(runs, str) or not isinstance(name, str):
        return None
    folder = Path(runs) / name
    return folder if folder.is_dir() else None
