"""Power cuts and worker crashes: schedules continue, and cancellations are reported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.crash_recovery import AUTOMATION, FAILURES, LATE_RUNS, STALLS
from deployments.deploy import PREFECT_FILE
from deployments.local_stack import stack_command
from deployments.stack_services import csrf_headers, get_text
from flows.process.stack_file import ProcessMark, Stack, read_stack
from ratchet.tracking.mirrors.mlflow.client import connect
from ratchet.tracking.run_folder import RunFolder, list_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TINY_TRAINER = Path(__file__).parents[1] / "flows" / "tiny_trainer.py"
EXPERIMENT = """\
scenario: graph_isomorphism
trainer: {module_path: tiny_trainer.py, class_name: TinyTrainer}
dataset: generated
graph_isomorphism: {num_pairs: 40, graph_sizes: [7, 8, 9]}
rl: {num_iterations: 6, lr: 0.5}
settings: {iterations_per_task: 1, retries: 0, home: home, tracking: false}
"""


class Machine:
    """A user's folder, the stack in it, and the test's requests to its server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        own = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"}
        self.environment = {**own, "TINY_LOG": str(folder / "log")}
        (folder / "experiments").mkdir(parents=True)
        shutil.copy(TINY_TRAINER, folder / "experiments")
        (folder / "experiments" / "tiny.yaml").write_text(EXPERIMENT)

    def up(self) -> Stack:
        self._output = (self.folder / "up.txt").open("ab")
        self.supervisor = subprocess.Popen(
            stack_command("up", self.home),
            env=self.environment,
            cwd=self.folder,
            stdout=self._output,
            stderr=self._output,
        )
        mark = ProcessMark.from_pid(self.supervisor.pid)
        self.wait_for(lambda: (s := read_stack(self.home)) and s.supervisor == mark and s.is_up())
        return self.stack

    @property
    def stack(self) -> Stack:
        stack = read_stack(self.home)
        assert stack is not None, self.said()
        return stack

    def said(self) -> str:
        return (self.folder / "up.txt").read_text()

    def ratchet(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from flows.cli.main import app; app()", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill_all(self) -> None:
        """Kill the stack and all descendant processes, as a power cut does."""
        family = [psutil.Process(self.supervisor.pid)]
        family += family[0].children(recursive=True)
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=120)
        self.supervisor.wait()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"{self.stack.prefect_api_url}/{path}"
        csrf = csrf_headers(url, None) if body is not None else {}
        request = urllib.request.Request(
            url,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **csrf},
        )
        for _ in range(10):
            try:
                with urllib.request.urlopen(request, timeout=300) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 503:  # its database is temporarily locked
                    raise
            time.sleep(1)
        raise AssertionError(f"{path}: the server remains busy")

    def begin(self, seed: int, seconds: float = 0, *overrides: str) -> str:
        """Start a run of the deployment that has one slot; return its flow run's id."""
        deployment = self.ask("deployments/name/experiment-from-file/nightly")
        request = {
            "parameters": {
                "file": "experiments/tiny.yaml",
                "overrides": [f"seed={seed}", *overrides],
            },
            "job_variables": {"env": {"TINY_SECONDS": str(seconds)}},
            "state": {"type": "SCHEDULED"},
        }
        return str(self.ask(f"deployments/{deployment['id']}/create_flow_run", request)["id"])

    def state(self, flow_run_id: str) -> str:
        return str(self.ask(f"flow_runs/{flow_run_id}")["state_name"])

    def run_of(self, flow_run_id: str) -> RunFolder | None:
        runs = list_runs(self.folder / "runs")
        return next((r for r in runs if flow_run_id in r.manifest.prefect_flow_run_ids), None)

    def wait_for(self, what: Callable[[], Any], seconds: float = 240.0) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.supervisor.poll() is None, self.said()
            if found := what():
                return found
            time.sleep(0.3)
        raise AssertionError(self.said())

    def wait_until_it_trains(self, flow_run_id: str) -> RunFolder:
        def trains() -> RunFolder | None:
            run = self.run_of(flow_run_id)
            return run if run and any(s.stage == "train" for s in run.manifest.stages) else None

        found: RunFolder = self.wait_for(trains)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "project")
    machine.up()
    machine.ratchet("deploy", "--home", str(machine.home), "--prefect-file", str(PREFECT_FILE))
    yield machine
    machine.ratchet("down", "--home", str(machine.home))


@pytest.mark.exhaustive
def test_schedules_continue_after_a_power_cut_and_a_dead_worker(machine: Machine) -> None:
    # a power cut while one run occupies the only slot and another waits for it
    lost = machine.begin(seed=1, seconds=3)
    run = machine.wait_until_it_trains(lost)
    assert run.status == "running"
    waiting = machine.begin(seed=2)
    machine.wait_for(lambda: machine.state(waiting) == "AwaitingConcurrencySlot")
    machine.kill_all()
    assert (run.manifest.status, run.status) == ("running", "interrupted")
    assert "interrupted" in machine.ratchet("runs")

    machine.up()
    assert machine.state(lost) == "Crashed"
    machine.wait_for(lambda: machine.state(waiting) == "Completed")
    names = [item["name"] for item in machine.ask("automations/filter", {})]
    assert sorted(names) == sorted([AUTOMATION, FAILURES, LATE_RUNS, STALLS])
    doctor = machine.ratchet("doctor", "--home", str(machine.home))
    assert run.run_id in doctor
    assert "its process is gone" not in doctor

    # the worker dies with its run: it is restarted, and the slot is free
    lost = machine.begin(seed=3, seconds=3)
    machine.wait_until_it_trains(lost)
    old = machine.stack
    worker = psutil.Process(old.processes["worker"].pid)
    for process in [worker, *worker.children(recursive=True)]:
        process.kill()
    machine.wait_for(lambda: machine.state(lost) == "Crashed")
    new = machine.wait_for(
        lambda: (s := machine.stack).processes["worker"] != old.processes["worker"] and s
    )
    assert new.processes["prefect"] == old.processes["prefect"], "other services must keep running"
    assert "the worker exited with exit code -9" in machine.said()

    # a paused run waits after its stage and continues when it is resumed
    held = machine.begin(seed=6, seconds=1)
    run = machine.wait_until_it_trains(held)
    machine.ask(f"flow_runs/{held}/set_state", {"state": {"type": "PAUSED", "name": "Paused"}})
    machine.wait_for(lambda: any(event["kind"] == "paused" for event in run.read_events()))
    stages = len(run.manifest.stages)
    time.sleep(4)
    assert len(run.manifest.stages) == stages
    machine.ask(f"flow_runs/{held}/resume", {})
    machine.wait_for(lambda: machine.state(held) == "Completed")

    # cancelling in the UI also cancels the run in Ratchet
    stopped = machine.begin(seed=4, seconds=3)
    run = machine.wait_until_it_trains(stopped)
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    machine.ask(f"flow_runs/{stopped}/set_state", state)
    machine.wait_for(lambda: run.status != "running")
    assert run.status == "cancelled"
    machine.wait_for(lambda: machine.state(stopped) == "Cancelled")

    # cancelling with Ratchet's command also cancels the flow run
    stopped = machine.begin(seed=5, seconds=3)
    run = machine.wait_until_it_trains(stopped)
    assert "Cancelled" in machine.ratchet("cancel", run.run_id)
    assert (run.status, machine.state(stopped)) == ("cancelled", "Cancelled")

    # a server that dies is restarted at its old address while a run continues
    last = machine.begin(seed=7, seconds=1)
    run = machine.wait_until_it_trains(last)
    before = len((machine.folder / "log").read_text().splitlines())
    prefect = machine.stack.processes["prefect"]
    os.kill(prefect.pid, signal.SIGKILL)
    machine.wait_for(lambda: machine.stack.processes["prefect"] != prefect)
    machine.wait_for(lambda: get_text(f"{machine.stack.prefect_api_url}/health") == "true")
    machine.wait_for(lambda: machine.state(last) == "Completed")
    done = (machine.folder / "log").read_text().splitlines()[before:]
    assert len(set(done)) == len(done), "an iteration was repeated"
    assert run.status == "completed"
    machine.supervisor.send_signal(signal.SIGINT)
    assert machine.supervisor.wait(240) == 0


@pytest.mark.in_turn(2, of="deployments")
@pytest.mark.parametrize(
    "killed",
    [
        ("worker", "mlflow"),
        pytest.param(("worker",), marks=pytest.mark.exhaustive),
        pytest.param(("mlflow",), marks=pytest.mark.exhaustive),
    ],
    ids=" and ".join,
)
def test_a_run_outlives_parts_of_the_stack(machine: Machine, killed: tuple[str, ...]) -> None:
    flow_run_id = machine.begin(1, 1.5, "settings.tracking=true")
    run = machine.wait_until_it_trains(flow_run_id)
    old = machine.stack.processes
    for name in killed:
        os.kill(old[name].pid, signal.SIGKILL)
    machine.wait_for(lambda: machine.state(flow_run_id) != "Running")
    flow_run = machine.ask(f"flow_runs/{flow_run_id}")
    assert flow_run["state"]["name"] == "Completed", flow_run["state"]["message"]
    assert (flow_run["run_count"], run.status) == (1, "completed")

    def restarted() -> Any:
        stack = machine.stack
        replaced = all(stack.processes.get(name, old[name]) != old[name] for name in killed)
        return replaced and stack.is_up() and stack

    new = machine.wait_for(restarted)
    machine.ratchet("sync", run.run_id)
    arms = json.loads((run.path / "mlflow.json").read_text())["arms"]
    norms = connect(new.mlflow_url).get_metric_history(arms["main"]["mlflow_run_id"], "train/norm")
    assert [norm.step for norm in norms] == list(range(6)), "each iteration once"
