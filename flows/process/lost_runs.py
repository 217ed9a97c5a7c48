"""Flow runs that Prefect takes for running though no process works on them.

A machine that loses its power tells nobody: such a run would hold the slot of its deployment's
concurrency limit, and its schedule wait, for ever. Imports Prefect: import it where it is used.
"""

from __future__ import annotations

from pathlib import Path

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType

from flows.process.flow_runs import end_lost_run
from flows.process.stack_file import POOL
from ratchet.tracking.presence import runners

_UNDER_WAY = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200


def lost_flow_runs(client: SyncPrefectClient, *, pool_is_here: bool) -> list[FlowRun]:
    """List the flow runs under way of which this machine knows that no process works on them.

    Those of the pool have a process that Prefect has named after them; those that were started
    here hold a lock in their run's folder. Of any other this machine knows nothing.

    Parameters
    ----------
    client
        A client of the server.
    pool_is_here
        Whether all runs of the work pool are processes of this machine: the server is the local
        stack's.
    """
    worked_on = _worked_on() if pool_is_here else set()
    lost = []
    for run in _under_way(client):
        if run.work_pool_name is not None:
            is_lost = pool_is_here and run.work_pool_name == POOL and str(run.id) not in worked_on
        else:
            folder = _folder(run)
            is_lost = folder is not None and not runners(folder)
        if is_lost:
            lost.append(run)
    return lost


def crash_lost_runs(*, pool_is_here: bool) -> list[str]:
    """Mark lost flow runs as crashed, which gives their slots back; return their names."""
    with get_client(sync_client=True) as client:
        lost = lost_flow_runs(client, pool_is_here=pool_is_here)
    for run in lost:
        end_lost_run(run, "The process that worked on it is gone.")
    return [run.name for run in lost]


def _under_way(client: SyncPrefectClient) -> list[FlowRun]:
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNDER_WAY)))
    found: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE, offset=len(found)):
        found += page
    return found


def _worked_on() -> set[str]:
    """Return the ids of flow runs that processes of this machine work on for a worker."""
    found = set()
    for process in psutil.process_iter():
        try:
            is_prefect = any(word.startswith("prefect") for word in process.cmdline())
            flow_run_id = process.environ().get("PREFECT__FLOW_RUN_ID") if is_prefect else None
        except (psutil.Error, OSError):  # it has ended, or is another user's
            continue
        if flow_run_id is not None:
            found.add(flow_run_id)
    return found


def _folder(run: FlowRun) -> Path | None:
    """Return the run's or the sweep's folder, if the parameters name one that is here."""
    settings = run.parameters.get("settings")
    if not isinstance(settings, dict):
        return None
    runs, name = settings.get("runs"), run.parameters.get("sweep_name") or settings.get("run_id")
    if not isinstance(runs, str) or not isinstance(name, str):
        return None
    folder = Path(runs) / name
    return folder if folder.is_dir() else None
