"""Server automations: runs without heartbeats crash, ended runs never change."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from deployments import crash_recovery
from deployments.crash_recovery import AUTOMATION, apply_automations, automations
from deployments.deploy import deploy
from deployments.stack_services import free_port, get_text
from flows.process.heartbeats import HEARTBEAT_VARIABLES
from flows.runners.work_pool import open_work_pool
from ratchet.parameters.settings import ExperimentSettings

WINDOW = timedelta(seconds=10)  # the shortest that Prefect accepts
HEARTBEAT = "prefect.flow-run.heartbeat"
FLOWS = """
import asyncio, sys
from prefect import flow
from prefect.runtime import flow_run
from flows.process.heartbeats import END_HOOKS

@flow(**END_HOOKS)
async def short(seconds: float) -> None:
    print(flow_run.get_id(), flush=True)
    await asyncio.sleep(seconds)

for seconds in sys.argv[1:]:
    asyncio.run(short(float(seconds)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Prefect server with its automations in a separate process; yield its URL."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    folder, port = tmp_path_factory.mktemp("prefect"), free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {**os.environ, "PREFECT_HOME": str(folder)}
    log_file = folder / "server.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deployments.servers", "prefect", "127.0.0.1", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: process.poll() is not None or get_text(f"{url}/health") == "true")
        assert process.poll() is None, log_file.read_text()
        with temporary_settings({PREFECT_API_URL: url}):
            yield url
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.2)


def start_run(state: str | None = None) -> UUID:
    """Create a running flow run; then set the given state, if any."""
    from prefect import flow, get_client
    from prefect.client.schemas.objects import StateType
    from prefect.states import Running, State

    @flow
    def nothing() -> None:
        """Do nothing."""

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(nothing)
        client.set_flow_run_state(run.id, Running())
        if state is not None:
            client.set_flow_run_state(run.id, State(type=StateType[state]))
    return run.id


def send_heartbeats(*runs: UUID) -> None:
    """Send a heartbeat of each run that arrives after all previous changes of its state."""
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.events import Event, Resource

    async def send() -> None:
        async with get_client() as client:
            events = [
                Event(
                    event=HEARTBEAT,
                    resource=Resource({"prefect.resource.id": f"prefect.flow-run.{run}"}),
                    occurred=datetime.now(UTC),
                )
                for run in runs
            ]
            content = [event.model_dump(mode="json") for event in events]
            answer = await client._client.post("/events", json=content)
            answer.raise_for_status()

    asyncio.run(send())


def state_of(run: UUID) -> str:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    assert state is not None
    return str(state.type.value)


def crashes_within(window: timedelta) -> list:
    """Return the automation that crashes runs, with a shorter heartbeat window."""
    (found,) = (each for each in automations() if each.name == AUTOMATION)
    trigger = found.trigger.model_copy(update={"within": window})
    return [found.model_copy(update={"trigger": trigger})]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("server")
def test_a_late_heartbeat_changes_no_run_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = crashes_within(WINDOW)
    monkeypatch.setattr(crash_recovery, "automations", lambda: wanted)
    apply_automations()
    ends = ["COMPLETED", "FAILED", "CANCELLED", "CRASHED"]
    ended = {end: start_run(end) for end in ends}
    lost = start_run()
    # the events of the ends arrive first, so that the server waits for heartbeats from here on
    send_heartbeats(*ended.values(), lost)
    wait_for(lambda: state_of(lost) == "CRASHED")
    wait_for(lambda: fired() > 1)  # for a run that has ended, too
    assert {end: state_of(run) for end, run in ended.items()} == {end: end for end in ends}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_a_killed_run_raises_an_alert(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # on a busy machine, seconds pass between a short flow's only heartbeat and its end
    shortened = crashes_within(timedelta(minutes=1))
    monkeypatch.setattr(crash_recovery, "automations", lambda: shortened)
    apply_automations()
    seconds = ["0"] * 6 + ["1", "600"]
    with subprocess.Popen(
        [sys.executable, "-c", FLOWS, *seconds],
        env={**os.environ, "PREFECT_API_URL": server},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        *completed, killed = (UUID(process.stdout.readline().strip()) for _ in seconds)
        wait_for(lambda: killed in runs_of_events(HEARTBEAT))
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: killed in runs_of_alerts())  # the windows of the others ended earlier
    assert set(completed).isdisjoint(runs_of_alerts())
    wait_for(lambda: state_of(killed) == "CRASHED")


def events(*names: str) -> list[dict[str, Any]]:
    """Return the server's events with these names, the latest first."""
    from prefect.client.orchestration import get_client

    async def read() -> list[dict[str, Any]]:
        async with get_client() as client:
            body = {"filter": {"event": {"name": names}}}
            response = await client._client.post("/events/filter", json=body)
            response.raise_for_status()
            return list(response.json()["events"])

    return asyncio.run(read())


def runs_of_events(name: str) -> set[UUID]:
    """Return the flow runs with an event."""
    return {UUID(each["resource"]["prefect.resource.id"][-36:]) for each in events(name)}


def runs_of_alerts() -> set[UUID]:
    """Return the flow runs for which the automation's trigger has fired."""
    labels = [
        each["payload"]["triggering_labels"] for each in events("prefect.automation.triggered")
    ]
    return {UUID(each["prefect.resource.id"][-36:]) for each in labels}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_of_workers_send_heartbeats_at_the_interval(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import get_client

    monkeypatch.setenv("PREFECT_API_URL", server)
    monkeypatch.chdir(tmp_path)
    deploy(tmp_path)
    asyncio.run(open_work_pool(ExperimentSettings(runner="work_pool")))
    with get_client(sync_client=True) as client:
        variables = {each.name: each.job_variables["env"] for each in client.read_deployments()}
    assert {"on-demand", "sweep", "member-ratchet"} <= variables.keys()
    assert all(each.items() >= HEARTBEAT_VARIABLES.items() for each in variables.values())


def fired() -> int:
    """Return the number of actions that the server has executed, including refused ones."""
    return len(events("prefect.automation.action.executed", "prefect.automation.action.failed"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("server")
def test_the_automation_of_an_earlier_version_no_longer_forces_states() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, DoNothing

    (wanted,) = crashes_within(WINDOW)
    forced = ChangeFlowRunState(state=StateType.CRASHED, message="own words", force=True)
    with get_client(sync_client=True) as client:
        for old in client.read_automations_by_name(AUTOMATION):
            client.delete_automation(old.id)
        client.create_automation(wanted.model_copy(update={"actions": [forced, DoNothing()]}))
        apply_automations()
        (known,) = client.read_automations_by_name(AUTOMATION)
    assert known.actions == [forced.model_copy(update={"force": False}), DoNothing()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("server")
def test_a_run_that_ends_during_the_search_for_orphaned_runs_keeps_its_state() -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Completed

    from flows.process.flow_runs import end_orphaned_run

    with get_client(sync_client=True) as client:
        read_early = client.read_flow_run(start_run())
        client.set_flow_run_state(read_early.id, Completed())
        cancelling = client.read_flow_run(start_run("CANCELLING"))
    end_orphaned_run(read_early, "gone")
    end_orphaned_run(cancelling, "gone")
    assert (state_of(read_early.id), state_of(cancelling.id)) == ("COMPLETED", "CANCELLED")
