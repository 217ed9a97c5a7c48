"""Runs that are stopped from outside say how, and go on; a run says when MLflow is behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.process.checks.base import Places
from flows.process.checks.runs import lost_flow_runs
from ratchet.tracking.run_folder import RunFolder, list_runs

TRAINER = Path(__file__).with_name("tiny_trainer.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def until_it_trains(lab, process) -> RunFolder:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None
        runs = list_runs(lab.folder / "runs")
        if runs and any(work.startswith("train") for work in lab.done()):
            return runs[0]
        time.sleep(0.1)
    raise AssertionError("it did not begin")


def start_and_wait_for_work(lab, parameters):
    """Go on with the run until it has done something new."""
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
def test_a_killed_run_is_interrupted_cancelled_is_cancelled_and_both_go_on(lab, monkeypatch):
    from prefect.settings import PREFECT_API_URL

    from flows.process.lost_runs import crash_lost_runs

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    lab.environment["TINY_SECONDS"] = "1"
    parameters = lab.hyper_params(rl__num_iterations=900)  # it ends when it is told to, not before
    process, _ = lab.start(parameters)
    run = until_it_trains(lab, process)
    assert run.status == "running"
    crashed = crash_lost_runs(pool_is_here=False)  # other tests' runs, too, have been killed
    assert run.run_id not in crashed, "it lives"
    process.kill()
    process.wait()
    assert run.status == "interrupted"
    assert flow_state(run) == "Running"
    lost = {
        check.subject for check in lost_flow_runs(Places(lab.folder / "home", lab.folder / "runs"))
    }
    assert f"flow run {run.run_id}" in lost
    assert run.run_id in crash_lost_runs(pool_is_here=False)
    assert flow_state(run) == "Crashed"

    process = start_and_wait_for_work(lab, parameters)
    result = CliRunner().invoke(app, ["cancel", run.run_id, "--runs", str(run.path.parent)])
    assert result.exit_code == 0, result.output
    assert f"ratchet resume {run.run_id}" in result.output
    assert process.wait(120) != 0
    assert (run.status, flow_state(run)) == ("cancelled", "Cancelled")

    process = start_and_wait_for_work(lab, parameters)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    assert run.manifest.status == "interrupted"

    lab.environment["TINY_SECONDS"] = "0"
    lab.run(parameters, lab.settings(iterations_per_task=900))
    assert run.status == "completed"
    assert lab.done().count("pretrain prover") == 1, "what was finished is kept"


def test_a_run_says_that_tracking_is_behind_and_how_to_mend_it(lab):
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
    (path,) = (folder / "runs").iterdir()
    assert "tracking is behind" in said
    assert f"ratchet sync {path.name}" in said
    assert "behind" not in run(f"sqlite:///{folder / 'other.db'}")
    assert (folder / "other.db").exists()
    assert not (folder / ".ratchet" / "mlflow.db").exists(), "the environment's was meant"
