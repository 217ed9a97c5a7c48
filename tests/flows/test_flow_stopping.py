"""Stopped runs report their status and can be resumed; runs report when MLflow is behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.sorting import FlowRunSort
from typer.testing import CliRunner

from flows.cli.main import app
from flows.process.checks.base import Installation
from flows.process.checks.runs import orphaned_flow_runs
from ratchet.tracking.run_folder import RunFolder, list_runs

TRAINER = Path(__file__).with_name("tiny_trainer.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def until_it_trains(lab, process) -> RunFolder:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None
        runs = list_runs(lab.folder / "runs")
        if runs and any(work.startswith("train") for work in lab.done()):
            return runs[0]
        time.sleep(0.1)
    raise AssertionError("training did not start")


def start_and_wait_for_work(lab, parameters):
    """Resume the run and wait until it has done new work."""
    before = len(lab.done())
    process, _ = lab.start(parameters)
    while len(lab.done()) == before:
        assert process.poll() is None
        time.sleep(0.1)
    return process


def flow_state(run: RunFolder) -> str:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(UUID(run.manifest.prefect_flow_run_ids[-1])).state_name)


@pytest.mark.timeout(900)
def test_killed_runs_are_interrupted_cancelled_runs_cancelled_and_both_resume(lab, monkeypatch):
    from prefect.settings import PREFECT_API_URL

    from flows.process.flow_runs import crash_orphaned_flow_runs

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    lab.environment["TINY_SECONDS"] = "1"
    parameters = lab.hyper_params(rl__num_iterations=900)  # long enough not to end on its own
    process, _ = lab.start(parameters)
    run = until_it_trains(lab, process)
    assert run.status == "running"
    crashed = crash_orphaned_flow_runs()  # other tests have killed runs, too
    assert run.run_id not in crashed, "the run is alive"
    process.kill()
    process.wait()
    assert run.status == "interrupted"
    assert flow_state(run) == "Running"
    lost = {
        check.subject
        for check in orphaned_flow_runs(Installation(lab.folder / "home", lab.folder / "runs"))
    }
    assert f"flow run {run.run_id}" in lost
    assert run.run_id in crash_orphaned_flow_runs()
    assert flow_state(run) == "Crashed"

    process = start_and_wait_for_work(lab, parameters)
    result = CliRunner().invoke(app, ["cancel", run.run_id, "--runs-dir", str(run.path.parent)])
    assert result.exit_code == 0, result.output
    assert f"ratchet resume {run.run_id}" in result.output
    assert process.wait(240) != 0
    assert (run.status, flow_state(run)) == ("cancelled", "Cancelled")

    process = start_and_wait_for_work(lab, parameters)
    process.send_signal(signal.SIGINT)
    process.wait(240)
    assert run.manifest.status == "interrupted"

    lab.environment["TINY_SECONDS"] = "0"
    lab.run(parameters, lab.settings(iterations_per_task=900))
    assert run.status == "completed"
    assert lab.done().count("pretrain prover") == 1, "finished stages are stored"


def flow_states(lab) -> dict[str, list[str]]:
    """Return the states of the lab's flow runs on the server, by flow."""
    from prefect import get_client

    states: dict[str, list[str]] = {}
    with get_client(sync_client=True) as client:
        names = {flow.id: flow.name for flow in client.read_flows()}
        for each in client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC):
            settings = each.parameters.get("settings") or {}
            if settings.get("home") == str(lab.folder / "home"):
                states.setdefault(names[each.flow_id], []).append(str(each.state_name))
    return states


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("parallel", [1, 2])
def test_an_interrupted_sweep_and_its_members_are_cancelled_in_prefect(lab, parallel):
    lab.environment["TINY_SECONDS"] = "1"
    parameters = lab.hyper_params(rl__num_iterations=900)
    process, _ = lab.start(parameters, action="sweep", grid={"seed": [0, 1]}, parallel=parallel)
    until_it_trains(lab, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(240) != 0
    states = flow_states(lab)
    assert states["sweep"] == ["Cancelled"]
    assert set(states["experiment"]) == {"Cancelled"}


def test_a_run_that_the_server_has_crashed_ends_with_the_reason(lab):
    from prefect import get_client
    from prefect.states import Crashed

    (lab.folder / "tiny.yaml").write_text(
        "scenario: graph_isomorphism\ndataset: generated\ngraph_isomorphism: {num_pairs: 40}\n"
        f"trainer: {{module_path: {TRAINER}, class_name: TinyTrainer}}\n"
        "rl: {num_iterations: 900, lr: 0.5}\nsettings: {tracking: false}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", "from flows.cli.main import app; app()", "run", "tiny.yaml"],
        env={**lab.child_environment(), "TINY_SECONDS": "1", "TINY_LOG": str(lab.log)},
        cwd=lab.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        run = until_it_trains(lab, process)
        (flow_run_id,) = run.manifest.prefect_flow_run_ids
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(flow_run_id), Crashed(message="Its heartbeats stopped."))
        output = " ".join(process.communicate(timeout=300)[0].split())
    reason = "Prefect's server has set its state to Crashed: Its heartbeats stopped."
    assert f"Interrupted: {reason} Finished stages are stored." in output
    assert run.manifest.status == "interrupted"
    assert reason in str(run.manifest.error)


def test_a_run_reports_that_tracking_is_behind_and_how_to_sync(lab):
    folder = lab.folder / "project"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(
        "scenario: graph_isomorphism\ndataset: generated\ngraph_isomorphism: {num_pairs: 40}\n"
        f"trainer: {{module_path: {TRAINER}, class_name: TinyTrainer}}\n"
        "rl: {num_iterations: 2, lr: 0.5}\n"
    )

    def run(uri: str) -> str:
        program = "from flows.cli.main import app; app()"
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, "run", "tiny.yaml", "--no-progress"],
            env={**lab.child_environment(), "MLFLOW_TRACKING_URI": uri},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = run("http://127.0.0.1:9")
    (path,) = (each.parent for each in (folder / "runs").glob("*/manifest.json"))
    assert "tracking is behind" in said
    assert f"ratchet sync {path.name}" in said
    assert "behind" not in run(f"sqlite:///{folder / 'other.db'}")
    assert (folder / "other.db").exists()
    assert not (folder / ".ratchet" / "mlflow.db").exists(), (
        "the tracking URI of the environment must be used"
    )


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("action", ["run", "run_without_prefect"])
def test_a_report_that_cannot_be_written_does_not_end_a_run(lab, action):
    first = lab.run(action=action)
    folder = RunFolder(first["folder"])
    folder.report_path.unlink()
    folder.report_path.mkdir()
    result = lab.run(action=action)
    assert result["cached"] == first["computed"]
    assert folder.status == "completed"
    (event,) = [event for event in folder.read_events() if event["kind"] == "report_failed"]
    assert event["data"]["command"] == f"ratchet report {folder.run_id}"
    assert "IsADirectoryError" in event["message"]
