"""One-step-behind runs overlap rollouts and learning; kills do not change the result."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from flows import plan_experiment
from flows.process.environment import prepare_environment
from flows.runs.verify import verify_run
from ratchet.parameters.settings import ExperimentSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ANSWERS = 16
CHOSEN = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "grpo",
    "rl": {"num_iterations": 3},
    "language_task": {
        "num_train": 64,
        "num_test": 8,
        "reverse": {"length": 3, "num_symbols": 6},
        "evaluator": "watched_evaluator.py:reward",
    },
    "agents": {
        "_default": {
            "max_tokens": 5,
            "small_model": {"layers": 1, "d_model": 16, "heads": 2, "context_length": 32},
            "warm_up": {"num_steps": 10, "batch_size": 8},
        }
    },
    "language": {
        "mode": "one_step_behind",
        "tasks_per_step": 4,
        "group_size": 4,
        "optimizer": {"lr": 0.01},
    },
}


def outcome(lab, result):
    """Return the files of the final state and the metrics of training and tests."""
    return lab.weights(result), lab.metrics(result)


@pytest.fixture(scope="module")
def undisturbed(new_lab):
    """Return the result of one process that alternates between rollouts and learning."""
    lab = new_lab()
    result = lab.run(CHOSEN, lab.settings(iterations_per_task=3))
    assert result["computed"] == 4
    return result["states"], outcome(lab, result)


@pytest.fixture
def scene(lab, tmp_path, monkeypatch):
    """Return an environment in which rollouts are slow and log the process that collects them."""
    prepare_environment(lab.folder / "home")
    log = tmp_path / "played.txt"
    log.touch()
    environment = {"WATCHED_LOG": str(log), "WATCHED_SECONDS": "0.02"}
    cut = lab.settings(iterations_per_task=1)

    def player(own: set[int], answers: int = 1) -> int:
        """Wait for ``answers`` completions by processes not in ``own``; return the first's id."""
        deadline = time.monotonic() + 300
        while True:
            pids = [int(line) for line in log.read_text().splitlines()]
            others = [pid for pid in pids if pid not in own]
            if len(others) >= answers:
                return others[0]
            assert time.monotonic() < deadline
            time.sleep(0.005)

    return SimpleNamespace(lab=lab, log=log, environment=environment, cut=cut, player=player)


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.in_turn(4, of="kills")
def test_kills_of_either_process_do_not_change_the_result(scene, undisturbed):
    lab = scene.lab
    process, _ = lab.start(CHOSEN, scene.cut, environment=scene.environment)
    first = scene.player({process.pid})
    os.kill(first, signal.SIGKILL)
    second = scene.player({process.pid, first}, ANSWERS + 2)
    process.kill()  # learns from the first rollouts during the second
    process.wait()
    for _ in range(100):
        if has_ended(second):
            break
        time.sleep(0.05)
    assert has_ended(second), "it must end with its parent"
    before = len(scene.log.read_text().splitlines())
    resumed = lab.run(CHOSEN, scene.cut, environment=scene.environment)
    assert resumed["cached"] == 3, "data, initial model, first rollouts"
    states, ended = undisturbed
    assert (resumed["states"], outcome(lab, resumed)) == (states, ended)
    played = len(scene.log.read_text().splitlines()) - before
    assert played == 3 * ANSWERS + 8, "stored rollouts must not be collected again"
    settings = ExperimentSettings.from_dict(scene.cut)
    assert all(stage.hit for stage in plan_experiment(CHOSEN, settings))
    checked = verify_run(resumed["run_id"], settings, stage="rollouts:1")
    assert checked.is_sound
    assert verify_run(resumed["run_id"], settings, stage="train:2").is_sound


def test_failures_of_prefetched_rollouts_are_retried_and_reported(scene, undisturbed):
    lab = scene.lab
    failures = Path(f"{scene.log}.failures")
    failures.write_text("2")
    cut = {**scene.cut, "retries": 1, "retry_delay_seconds": 0}
    failed = lab.run(CHOSEN, cut, environment=scene.environment, expect=1)
    assert "the judge is out" in failed["output"]
    assert not failures.exists(), "both attempts must fail"
    failures.write_text("1")
    resumed = lab.run(CHOSEN, cut, environment=scene.environment)
    assert not failures.exists()
    assert (resumed["states"], outcome(lab, resumed)) == undisturbed
    run = json.loads((Path(resumed["folder"]) / "manifest.json").read_text())
    places = {(stage["stage"], stage["iteration"]) for stage in run["stages"]}
    assert {("rollouts", iteration) for iteration in range(4)} <= places
