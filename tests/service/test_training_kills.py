"""Kills of the service at any point of a session leave the trained weights unchanged."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time

import pytest
from micro_model import write_micro_model
from safetensors.torch import load_file

from ratchet.language_models.retrying import RetryPolicy
from ratchet.language_models.training_service import OptimizerSettings, TrainingExample, connect
from ratchet.service.database import Database
from ratchet.service.launch import ServiceAddress, service_command
from ratchet.service.models import ModelRegistry, StoredModel
from ratchet.service.training_sessions import sessions as sessions_module
from ratchet.service.training_sessions.operations import (
    CreateSessionRequest,
    ForwardBackwardRequest,
    OptimStepRequest,
    SaveWeightsRequest,
)
from ratchet.service.training_sessions.records import SessionRecords
from ratchet.service.training_sessions.sessions import TrainingSessions
from ratchet.service.training_sessions.state import SessionState

MODEL = "ratchet-tiny"
EXAMPLE = {"tokens": (1, 2, 3, 4), "loss_mask": (0, 1, 1, 1), "advantages": (0.0, 1.0, -2.0, 0.5)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("model") / MODEL)


class _KilledError(BaseException):
    """Simulated kill of the process."""


def _verbs():
    """Return the operations: two steps, the first with two passes, then a save of the weights."""
    passes = [
        ForwardBackwardRequest(sequence=n, examples=(EXAMPLE,), loss=loss)
        for n, loss in ((0, "ppo"), (1, "reinforce"), (3, "cispo"))
    ]
    steps = [OptimStepRequest(sequence=n, optimizer={"learning_rate": 0.01}) for n in (2, 4)]
    given = [("forward_backward", verb) for verb in passes]
    given += [("optim_step", verb) for verb in steps]
    given.append(("save_weights", SaveWeightsRequest(sequence=5, name="end")))
    return sorted(given, key=lambda item: item[1].sequence)


def _work(home, model):
    """Send all operations to a service's sessions; return the weights, or None after a kill."""
    home.mkdir(exist_ok=True)
    database = Database(home / "service.sqlite3")
    registry = ModelRegistry(database, home / "models", StoredModel(MODEL, model, MODEL))
    sessions = TrainingSessions(database, registry, home / "training")
    sessions.start()
    session = sessions.create(CreateSessionRequest(model=MODEL, lora_rank=2, intent="i"))
    try:
        for name, verb in _verbs():
            answer = sessions.submit(session.id, name, verb).result()
        return load_file(registry.get(answer["model"]).folder / "adapter_model.safetensors")
    except _KilledError:
        return None
    finally:
        sessions.stop()
        database.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    return _work(tmp_path_factory.mktemp("undisturbed"), model)


_PLACES = [
    *((SessionState, name, 1) for name in ("forward_backward", "optim_step", "write")),
    *((SessionRecords, name, 2) for name in ("accept", "done")),
    (SessionRecords, "done", 5),
    (SessionRecords, "snapshot", 0),
    (SessionState, "save_model", 0),
]


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("owner", "name", "count"), _PLACES, ids=[f"{place[1]}-{place[2]}" for place in _PLACES]
)
def test_a_kill_before_or_after_any_part_of_an_operation_has_no_effect(
    tmp_path, model, undisturbed, monkeypatch, owner, name, count, before
):
    monkeypatch.setattr(sessions_module, "_WORK_PER_SNAPSHOT", 0.0)
    real, calls = getattr(owner, name), []

    def killed(self, *args, **kwargs):
        calls.append(name)
        dies = len(calls) == count + 1
        if dies and before:
            raise _KilledError
        result = real(self, *args, **kwargs)
        if dies:
            raise _KilledError
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed)
        assert _work(tmp_path / "killed", model) is None
    again = _work(tmp_path / "killed", model)
    assert all(bool((again[key] == undisturbed[key]).all()) for key in undisturbed)
    assert again.keys() == undisturbed.keys()


def test_steps_without_a_snapshot_are_repeated(tmp_path, model, undisturbed, monkeypatch):
    monkeypatch.setattr(sessions_module, "_WORK_PER_SNAPSHOT", float("inf"))
    monkeypatch.setattr(sessions_module._Open, "__init__", _never_written(sessions_module._Open))
    with monkeypatch.context() as patched:
        patched.setattr(SessionState, "save_model", _kill)
        assert _work(tmp_path / "b", model) is None
    again = _work(tmp_path / "b", model)
    assert not list((tmp_path / "b").glob("training/*/state-*"))
    assert all(bool((again[key] == undisturbed[key]).all()) for key in undisturbed)


def _kill(self, folder):
    raise _KilledError


def _never_written(kind):
    made = kind.__init__

    def make(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.writing = 1.0

    return make


def _start(home, model, port):
    return subprocess.Popen(service_command(home=str(home), port=port, model=str(model)))


@pytest.mark.slow
def test_repeated_kills_give_the_same_weights(tmp_path, model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    example = TrainingExample((1, 2, 3, 4), (0, 1, 1, 1), advantages=(0.0, 1.0, -2.0, 0.5))
    policy = RetryPolicy(max_attempts=2000, first_delay_seconds=0.01, max_delay_seconds=0.05)

    def train(home, steps):
        url = f"http://127.0.0.1:{port}/v1"
        with connect(url, model=MODEL, lora_rank=2, intent="i", policy=policy) as session:
            for n in range(steps):
                session.forward_backward([example] * 3, loss="ppo", loss_config={}, sequence=2 * n)
                session.optim_step(OptimizerSettings(1e-3, eps=1e-6), sequence=2 * n + 1)
            name = session.save_weights(sequence=2 * steps, name="end")
        (saved,) = home.glob("llm/models/*/adapter_model.safetensors")
        return name, load_file(saved)

    outcomes = []
    for label, kills in (("a", 0), ("b", 2)):
        home = tmp_path / label
        home.mkdir()
        process = _start(home, model, port)
        thread = threading.Thread(target=lambda h=home: outcomes.append(train(h, 120)))
        thread.start()
        for kill in range(kills):
            while ServiceAddress.read(home / "llm") is None:
                time.sleep(0.01)
            database = home / "llm" / "service.sqlite3"
            while not database.exists():
                time.sleep(0.01)
            time.sleep(1.0 + 0.137 * kill)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert thread.is_alive()
            (home / "llm" / "service.json").unlink(missing_ok=True)
            process = _start(home, model, port)
        thread.join(60)
        process.terminate()
        process.wait(240)
    (name, undisturbed), (again_name, killed) = outcomes
    assert name == again_name
    assert all(bool((killed[key] == undisturbed[key]).all()) for key in undisturbed)
