"""Flow runs on a Prefect server: the last one of a run, and orphaned ones without a process.

After a power cut the server still lists a flow run as running. It would occupy its slot of the
deployment's concurrency limit, and block the schedule, forever. Imports Prefect.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Crashed

from flows.process.stack_file import POOL
from ratchet.tracking.run_lock import runners

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

_ACTIVE_STATES = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200


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


def orphaned_flow_runs(client: SyncPrefectClient, *, pool_is_local: bool) -> list[FlowRun]:
    """List active flow runs whose process is known to be gone from this machine.

    Flow runs of the pool are identified by an environment variable of their process, flow runs
    started from this machine by the lock in their run folder. All others are skipped.

    Parameters
    ----------
    client
        A client of the server.
    pool_is_local
        Whether all runs of the work pool are processes of this machine, as on the local stack's
        server.
    """
    executing = _flow_runs_of_local_processes() if pool_is_local else set()
    orphaned = []
    for run in _active_flow_runs(client):
        if run.work_pool_name is not None:
            in_pool = pool_is_local and run.work_pool_name == POOL
            is_orphaned = in_pool and str(run.id) not in executing
        else:
            folder = _local_folder(run)
            is_orphaned = folder is not None and not runners(folder)
        if is_orphaned:
            orphaned.append(run)
    return orphaned


def crash_orphaned_flow_runs(*, pool_is_local: bool) -> list[str]:
    """Mark orphaned flow runs as crashed, which frees their slots; return their names."""
    with get_client(sync_client=True) as client:
        orphaned = orphaned_flow_runs(client, pool_is_local=pool_is_local)
    for run in orphaned:
        end_orphaned_run(run, "Its process is gone.")
    return [run.name for run in orphaned]


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
