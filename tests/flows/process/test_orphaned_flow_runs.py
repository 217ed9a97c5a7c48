"""Only flow runs that are known to have been executed on this machine are orphaned here."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.server.database import provide_database_interface
from prefect.server.services import foreman
from prefect.settings import PREFECT_API_URL
from prefect.states import Pending, Running

from flows.process.checks import runs
from flows.process.checks.base import Installation
from flows.process.flow_runs import (
    OFFLINE,
    crash_orphaned_flow_runs,
    orphaned_flow_runs,
    record_location,
)
from flows.runners.work_pool import open_work_pool
from ratchet.errors import WorkerDiedError
from ratchet.parameters.settings import ExperimentSettings

pytestmark = pytest.mark.usefixtures("prefect_server")
OTHERS = {
    "host": {"ratchet.host": "other"},
    "host and boot": {"ratchet.host": "other", "ratchet.boot": "other"},
    "user": {"ratchet.user": "other"},
    "namespace": {"ratchet.processes": "pid:[1]"},
}


@pytest.fixture
def start(monkeypatch):
    """Return a function that starts a flow run of a work pool, as a worker would."""
    pool = f"pool-{uuid4()}"
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        flow = client.create_flow_from_name("orphaned")
        deployment = client.create_deployment(flow, name=pool, work_pool_name=pool)

        def start_run(labels=None, *, is_recorded=True):
            run = client.create_flow_run_from_deployment(deployment).id
            client.set_flow_run_state(run, Running(), force=True)
            if is_recorded:
                monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run))
                asyncio.run(record_location())
                monkeypatch.delenv("PREFECT__FLOW_RUN_ID")
            if labels:
                client.update_flow_run_labels(run, labels)
            return run

        yield start_run


def orphaned():
    with get_client(sync_client=True) as client:
        return {run.id for run in orphaned_flow_runs(client)}


def test_doctor_lists_lost_runs_of_this_machine_of_any_pool_and_no_others(
    start, tmp_path, monkeypatch
):
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    lost, of_a_program = start(), start(is_recorded=False)
    others = [start(labels) for labels in OTHERS.values()]
    with get_client(sync_client=True) as client:
        names = [client.read_flow_run(run).name for run in (lost, of_a_program, *others)]
    listed = {check.subject for check in runs.orphaned_flow_runs(Installation(tmp_path, tmp_path))}
    assert [f"flow run {name}" in listed for name in names] == [True, *[False] * len(names[1:])]


def test_a_run_of_this_machine_without_a_process_is_crashed(start):
    lost, rebooted = start(), start({"ratchet.boot": "earlier", "ratchet.processes": "pid:[1]"})
    assert orphaned() >= {lost, rebooted}
    crash_orphaned_flow_runs()
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(lost).state_name == "Crashed"


@pytest.mark.parametrize("other", OTHERS)
def test_runs_elsewhere_are_left_to_their_heartbeats(start, other):
    assert start(OTHERS[other]) not in orphaned()


def test_a_run_without_a_recorded_location_is_left_to_its_heartbeats(start):
    assert start(is_recorded=False) not in orphaned()


def test_a_run_with_a_process_is_not_orphaned(start):
    run = start()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "prefect"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, env={"PREFECT__FLOW_RUN_ID": str(run)}
    )
    assert run not in orphaned()
    process.communicate()
    assert run in orphaned()


@pytest.fixture(scope="module")
def workers(prefect_server):
    """Return a work pool with a worker that is offline, and one that is online."""
    pool = f"pool-{uuid4()}"
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        client.send_worker_heartbeat(pool, "lost", heartbeat_interval_seconds=1)
        client.send_worker_heartbeat(pool, "alive", heartbeat_interval_seconds=600)
        while not client.read_workers_for_work_pool(pool, OFFLINE):
            asyncio.run(  # the server of tests has no background services
                foreman._mark_online_workers_without_recent_heartbeat_as_offline(
                    db=provide_database_interface(),
                    inactivity_heartbeat_multiple=1,
                    fallback_heartbeat_interval_seconds=30,
                )
            )
    return pool


def accept(run, worker, *, infrastructure=None, kind="process"):
    """Accept a flow run as a worker does that has not started it."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Pending())
        client.update_flow_run_labels(
            run, {"prefect.worker.name": worker, "prefect.worker.type": kind}
        )
        if infrastructure:
            client.update_flow_run(run, infrastructure_pid=infrastructure)


def test_a_run_whose_worker_is_lost_before_it_starts_is_orphaned(workers):
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name("pending")
        deployment = client.create_deployment(flow, name=workers, work_pool_name=workers)
        runs = [client.create_flow_run_from_deployment(deployment).id for _ in range(4)]
    accept(runs[0], "lost")
    accept(runs[1], "lost", infrastructure="host:1")
    accept(runs[2], "lost", infrastructure="job-1", kind="kubernetes")  # starts without its worker
    accept(runs[3], "alive")
    assert orphaned() & set(runs) == {runs[0], runs[1]}


@pytest.mark.slow
def test_a_member_whose_worker_is_lost_before_it_starts_is_a_lost_worker(workers):
    settings = ExperimentSettings.from_dict({"work_pool": workers, "run_id": "member"})

    async def submit():
        runner = await open_work_pool(settings)
        member = asyncio.ensure_future(runner.submit({"parameters": {"settings": {"run_id": "m"}}}))
        async with get_client() as client:
            while not (taken := await client.get_scheduled_flow_runs_for_work_pool(workers)):
                await asyncio.sleep(0.1)
        accept(taken[0].flow_run.id, "lost")
        await member

    with pytest.raises(WorkerDiedError, match="m crashed: Its worker went offline before it"):
        asyncio.run(asyncio.wait_for(submit(), 120))


IN_ANOTHER_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.mark.slow
def test_a_head_that_restarts_in_another_process_namespace_leaves_the_run(start):
    unshare = [*IN_ANOTHER_NAMESPACE, "true"]
    if shutil.which("unshare") is None or subprocess.run(unshare, check=False).returncode:
        pytest.skip("creating a process namespace needs root")
    run = start()
    head = [*IN_ANOTHER_NAMESPACE, sys.executable, "-P", "-m", "deployments.crash_recovery"]
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    subprocess.run(head, check=True, env=environment)
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run).state_name == "Running"
        subprocess.run(head[len(IN_ANOTHER_NAMESPACE) :], check=True, env=environment)
        assert client.read_flow_run(run).state_name == "Crashed"
