"""How a run ended that did not come to its end: it failed, was interrupted or was cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.client.schemas.objects import StateType
from prefect.exceptions import Pause
from prefect.runtime import flow_run

from flows.process.flow_runs import find_flow_run
from ratchet.errors import RunPrunedError

if TYPE_CHECKING:
    from ratchet.tracking.manifest import RunStatus
    from ratchet.tracking.run_folder import RunFolder


def how_it_ended(folder: RunFolder, error: BaseException) -> tuple[RunStatus, str]:
    """Return the run's status, and what to say of it.

    Errors are exceptions; what is none, such as Ctrl-C or a signal, comes from outside.
    """
    go_on = f"Go on with `ratchet resume {folder.run_id}`."
    if isinstance(error, RunPrunedError):
        return "pruned", f"{error} {go_on}"
    if isinstance(error, Exception):
        return "failed", f"{type(error).__name__}: {error} {go_on}"
    if isinstance(error, Pause):
        return "interrupted", f"suspended in Prefect. Resume it there, or: {go_on}"
    if folder.manifest.status == "cancelled" or _is_cancelled_in_prefect():
        return "cancelled", f"cancelled. {go_on}"
    return "interrupted", f"interrupted ({type(error).__name__}). {go_on}"


def _is_cancelled_in_prefect() -> bool:
    """Return whether somebody has cancelled the flow run, as far as its server can tell.

    Asked synchronously: what interrupts the run has cancelled its tasks too.
    """
    flow_run_id = flow_run.get_id()
    known = find_flow_run(flow_run_id) if flow_run_id is not None else None
    state = known.state if known is not None else None
    return state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED)
