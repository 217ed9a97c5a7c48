"""Runs that nobody works on though something says so, and schedules that nobody keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from flows.process.checks.base import Check, CheckResult, Look, Places, bad
from flows.process.checks.servers import ask_health
from flows.process.stack_file import running_stack

_YOUNG = timedelta(minutes=2)


def interrupted_runs(places: Places) -> Iterator[Check]:
    """Name the runs whose process is gone though nobody has ended them."""
    from ratchet.tracking.run_folder import list_runs

    for folder in list_runs(places.runs):
        if folder.status == "interrupted":
            details = f"interrupted. Go on with it: `ratchet resume {folder.run_id}`"
            yield Check(f"run {folder.run_id}", CheckResult.WARNING, details)


def stalled_stages(places: Places) -> Iterator[Check]:
    """Name the stages of running runs that have given no sign of life for unusually long."""
    from ratchet.tracking.live_file import read_live
    from ratchet.tracking.run_folder import list_runs
    from ratchet.tracking.stalls import stalls_of

    for folder in list_runs(places.runs):
        if folder.status != "running":
            continue
        manifest = folder.manifest
        limit = manifest.settings.get("stall_seconds")
        for stall in stalls_of(read_live(folder.path), manifest.stages, limit):
            run = folder.run_id
            details = (
                f"{stall}. Look at it: `ratchet watch {run}`. End it and go on:"
                f" `ratchet cancel {run}`, `ratchet resume {run}`"
            )
            yield Check(f"run {run}", CheckResult.WARNING, details)


def lost_flow_runs(places: Places) -> Iterator[Check]:
    """Name the flow runs that the server takes for running though no process works on them."""
    return _asked(places, "flow runs", _lost_flow_runs)


def dead_scheduler(places: Places) -> Iterator[Check]:
    """Name deployments whose schedule has made no run to come: the server's scheduler is dead."""
    return _asked(places, "schedules", _dead_scheduler)


def _asked(places: Places, subject: str, look: Look) -> Iterator[Check]:
    """Look at what a server says that is well; it may keep that to itself."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None or ask_health(places, url).status != 200:
        return
    import httpx

    try:
        yield from look(places)
    except httpx.HTTPError as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        advice = "If it wants a password: `export PREFECT_API_AUTH_STRING=USER:PASSWORD`"
        yield bad(subject, f"{url} does not say them ({reason}). {advice}")


def _lost_flow_runs(places: Places) -> Iterator[Check]:
    from prefect.client.orchestration import get_client

    from flows.process import lost_runs

    stack = running_stack(places.home)
    is_ours = stack is not None and stack.prefect_api_url == os.environ["PREFECT_API_URL"]
    with get_client(sync_client=True) as client:
        for run in lost_runs.lost_flow_runs(client, pool_is_here=is_ours):
            details = (
                f"{run.state_name} in Prefect, but no process works on it: it may hold up its"
                " schedule. Starting the local stack again (`ratchet down`, `ratchet up`) marks it"
                " as crashed; for another server, change its state in Prefect's UI"
            )
            yield Check(f"flow run {run.name}", CheckResult.WARNING, details)


def _dead_scheduler(places: Places) -> Iterator[Check]:
    for name in _read_schedules():
        yield bad(
            f"schedule of {name}",
            "active, but no run is to come: the server's scheduler is dead, as with SQLAlchemy 2.1."
            " `pip install 'sqlalchemy<2.1'`, then `ratchet down` and `ratchet up`",
        )


def _read_schedules() -> list[str]:
    """Return the deployments with an active schedule and no run to come."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return [
            deployment.name
            for deployment in client.read_deployments()
            if any(schedule.active for schedule in deployment.schedules)
            and not deployment.paused
            and not _is_young(deployment.updated)
            and not client.get_scheduled_flow_runs_for_deployments([deployment.id])
        ]


def _is_young(updated: datetime | None) -> bool:
    """Whether the scheduler may not have seen a deployment yet."""
    return updated is not None and datetime.now(UTC) - updated < _YOUNG
