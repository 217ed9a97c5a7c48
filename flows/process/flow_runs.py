"""The flow run that has worked on a run last, as a Prefect server knows it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Crashed

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)


def find_flow_run(flow_run_id: str) -> FlowRun | None:
    """Read a flow run; None where no server is, or none knows it. Does not wait for a server."""
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            return client.read_flow_run(UUID(flow_run_id))
    except ObjectNotFound:
        return None
    except httpx.HTTPError as error:
        logger.warning("Prefect was not asked for flow run %s: %s", flow_run_id, error)
        return None


def read_flow_run(folder: RunFolder) -> FlowRun | None:
    """Read the last flow run of a run from the server in use; None where it is not known."""
    ids = folder.manifest.prefect_flow_run_ids
    return find_flow_run(ids[-1]) if ids and os.environ.get("PREFECT_API_URL") else None


def set_state(run: FlowRun, state: State[Any]) -> None:
    """Propose a state of a flow run.

    The server decides by the state that the run has then: one that has ended is not crashed or
    cancelled any more.
    """
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, state)


def end_lost_run(run: FlowRun, message: str) -> None:
    """End a flow run whose process is gone: crashed, or cancelled if that was under way."""
    is_cancelling = run.state is not None and run.state.type is StateType.CANCELLING
    set_state(run, Cancelled(message=message) if is_cancelling else Crashed(message=message))
