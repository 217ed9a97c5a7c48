"""A remote trainer gives the same result after kills and a fork."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request

import pytest

from ratchet.language_models.endpoints import EMBEDDED_URL_VARIABLE
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.service.launch import ServiceAddress, service_command
from trainers.language.state import LanguageState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHAPE = {"layers": 1, "d_model": 16, "heads": 2, "context_length": 32}
CHOSEN = {
    "scenario": "language_task",
    "dataset": "reverse",
    "trainer": "remote_grpo",
    "rl": {"num_iterations": 3},
    "language_task": {
        "num_train": 64,
        "num_test": 8,
        "reverse": {"length": 3, "num_symbols": 6},
        "evaluator": "partial",
    },
    "agents": {
        "_default": {
            "max_tokens": 5,
            "small_model": SHAPE,
            "warm_up": {"num_steps": 10, "batch_size": 8},
        }
    },
    "language": {
        "tasks_per_step": 4,
        "group_size": 4,
        "num_epochs": 2,
        "micro_batch_size": 8,
        "optimizer": {"lr": 0.01, "warmup_steps": 2},
        "train_service": {"backend": "ratchet"},
    },
}


class Service:
    """Service process with a small base model; it starts in the background."""

    def __init__(self, home):
        self.home, self.port = home, 0
        make_small_model(home / "base", alphabet="ab", shape=SmallModelShape(**SHAPE))
        self.start()

    def start(self):
        model = str(self.home / "base")
        command = service_command(home=str(self.home), port=self.port, model=model)
        self.process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    @property
    def url(self):
        deadline = time.monotonic() + 300
        while (found := ServiceAddress.read(self.home / "llm")) is None:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.port = int(found.url.rpartition(":")[2].partition("/")[0])
        return found.url

    def restart(self):
        self.process.kill()
        self.process.wait()
        (self.home / "llm" / "service.json").unlink()
        self.start()
        assert self.url

    def sessions(self):
        url = self.url.removesuffix("/v1")
        with urllib.request.urlopen(f"{url}/api/v1/training_runs") as answer:
            return json.load(answer)["training_runs"]


@pytest.fixture
def services(tmp_path):
    """Start one service that is killed and one that is not."""
    started = [Service(tmp_path / name) for name in ("killed", "undisturbed")]
    yield started
    for each in started:
        each.process.terminate()
    for each in started:
        each.process.wait(240)


def stored(home, result):
    return LanguageState.load(home / "store" / "stages" / result["states"]["main"] / "state")


def trained(lab, result):
    return [entry for entry in lab.metrics(result) if entry[1] == "train"]


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.parametrize(
    "mode", [pytest.param("synchronous", marks=pytest.mark.exhaustive), "one_step_behind"]
)
def test_kills_and_a_fork_do_not_change_the_result(lab, tmp_path, services, mode):
    chosen = {**CHOSEN, "language": {**CHOSEN["language"], "mode": mode}}
    service, undisturbed = services
    lab.environment[EMBEDDED_URL_VARIABLE] = service.url
    cut = lab.settings(iterations_per_task=1)
    lab.kill("stage=rollouts;iteration=1;within=0.05", chosen, cut)
    lab.kill("stage=train;iteration=3;within=0.6", chosen, cut)
    service.restart()  # by SIGKILL
    (run,) = (path.name for path in (lab.folder / "runs").iterdir())
    changes = {"grpo.clip_high": 1e-4}
    forked = lab.run(chosen, cut, action="fork", run=run, changes=changes, **{"from": 1})
    resumed = lab.run(chosen, cut)
    assert resumed["cached"] > 0
    lab.environment[EMBEDDED_URL_VARIABLE] = undisturbed.url
    whole = lab.run(chosen, {**cut, "home": str(tmp_path / "other")})
    assert trained(lab, resumed) == trained(lab, whole)
    assert len(trained(lab, whole)) == 3
    state = stored(lab.folder / "home", resumed)
    assert state == stored(tmp_path / "other", whole), "expected an identical model"
    assert state.learners["agent"]["steps"] == 6
    assert forked["states"] != resumed["states"]
    sent = [number for each in service.sessions() if (number := each["next_seq_id"] - 1)]
    verbs = 2 + 2 * (2 + 1) + 1  # scores in two batches, two steps, and the model
    assert sent == [verbs] * (3 + 2), "each iteration of the parent and of the fork exactly once"
