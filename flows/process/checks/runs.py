"""Checks of runs: interrupted or stalled ones, orphaned flow runs, and dead schedules."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from flows.process.checks.base import Check, CheckFunction, Installation, bad, warning
from flows.process.checks.servers import get_health

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

_NEW_DEPLOYMENT = timedelta(minutes=2)
"""Age below which the server's scheduler may not have processed a deployment."""


def interrupted_runs(installation: Installation) -> Iterator[Check]:
    """Report runs whose process is gone although they have not ended."""
    from ratchet.tracking.run_folder import list_runs

    for folder in list_runs(installation.runs):
        if folder.status == "interrupted":
            details = f"interrupted. Resume it: `ratchet resume {folder.run_id}`"
            yield warning(f"run {folder.run_id}", details)


def stalled_stages(installation: Installation) -> Iterator[Check]:
    """Report stages of running runs without progress for an unusually long time."""
    from ratchet.tracking.live_file import read_live, stalls_of
    from ratchet.tracking.run_folder import list_runs

    for folder in list_runs(installation.runs):
        if folder.status != "running":
            continue
        manifest = folder.manifest
        limit = manifest.settings.get("stall_seconds")
        for stall in stalls_of(read_live(folder.path), manifest.stages, limit):
            run = folder.run_id
            details = (
                f"{stall}. Inspect it: `ratchet watch {run}`. Cancel and resume it:"
                f" `ratchet cancel {run}`, `ratchet resume {run}`"
            )
            yield warning(f"run {run}", details)


def orphaned_flow_runs(installation: Installation) -> Iterator[Check]:
    """Report flow runs of this user that run on the server although their process here is gone.

    Others are left to their heartbeats, unless their worker is lost before they start.
    """
    return _with_server(installation, "flow runs", _orphaned_flow_runs)


def dead_scheduler(installation: Installation) -> Iterator[Check]:
    """Report deployments whose schedule has no upcoming run: the server's scheduler is dead."""
    return _with_server(installation, "schedules", _dead_scheduler)


def outdated_deployments(installation: Installation) -> Iterator[Check]:
    """Report deployments of earlier versions whose forms have fields that this version lacks."""
    return _with_server(installation, "deployments", _outdated_deployments)


def _with_server(installation: Installation, subject: str, check: CheckFunction) -> Iterator[Check]:
    """Run a check on a healthy server, which may deny access."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None or get_health(installation, url).status != 200:
        return
    import httpx

    try:
        yield from check(installation)
    except httpx.HTTPError as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        advice = "If it requires a password: `export PREFECT_API_AUTH_STRING=USER:PASSWORD`"
        yield bad(subject, f"{url} does not list them ({reason}). {advice}")


def _orphaned_flow_runs(installation: Installation) -> Iterator[Check]:
    from prefect.client.orchestration import get_client

    from flows.process import flow_runs

    with get_client(sync_client=True) as client:
        for run in flow_runs.orphaned_flow_runs(client):
            yield warning(
                f"flow run {run.name}",
                f"{run.state_name} in Prefect, but its process or worker is gone: it may block its"
                " schedule. Restarting the local stack (`ratchet down`, `ratchet up`) marks it as"
                " crashed; on a different server, change its state in Prefect's UI",
            )


def _dead_scheduler(installation: Installation) -> Iterator[Check]:
    for name in _unscheduled_deployments():
        yield bad(
            f"schedule of {name}",
            "active, but without upcoming runs: the server's scheduler is dead, as with SQLAlchemy"
            " 2.1. `pip install 'sqlalchemy<2.1'`, then `ratchet down` and `ratchet up`",
        )


def _unscheduled_deployments() -> list[str]:
    """Return Ratchet's deployments with an active schedule and no upcoming run."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return [
            deployment.name
            for deployment in _deployments(client)
            if any(schedule.active for schedule in deployment.schedules)
            and not deployment.paused
            and not _is_new(deployment.updated)
            and not client.get_scheduled_flow_runs_for_deployments([deployment.id])
        ]


def _outdated_deployments(_installation: Installation) -> Iterator[Check]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        deployments = _deployments(client)
    for deployment in deployments:
        module, _, name = str(deployment.entrypoint).rpartition(".")
        flow = getattr(import_module(module), name, None)
        known = {} if flow is None else inspect.signature(flow.fn).parameters
        schema = deployment.parameter_openapi_schema or {}
        missing = sorted(schema.get("properties", {}).keys() - known.keys())
        if missing:
            yield bad(
                f"deployment {deployment.name}",
                f"of an earlier version: runs with {', '.join(missing)} crash, since this version"
                " has no such fields. Register it again with `ratchet deploy`",
            )


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return Ratchet's deployments on the server."""
    deployments = client.read_deployments()
    return [each for each in deployments if str(each.entrypoint).startswith("flows.")]


def _is_new(updated: datetime | None) -> bool:
    return updated is not None and datetime.now(UTC) - updated < _NEW_DEPLOYMENT
