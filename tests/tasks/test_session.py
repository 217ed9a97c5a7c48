"""A stage continues from the state of its key, regardless of earlier work of the process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.parameters.settings import ExperimentSettings
from tasks.tensordict.session import ArmSession
from trainers.staged import StagedTrainer


class FakeState:
    loaded: list = []  # noqa: RUF012 -- keys in the order of reads

    @classmethod
    def load(cls, directory):
        cls.loaded.append(Path(directory).parent.name)
        return cls.loaded[-1]


class FakeTrainer(StagedTrainer):
    State = FakeState
    state = None
    __module__ = "trainers.fake"

    def __init__(self, hyper_params, instance, settings):
        pass

    initial_state = None
    _take_state = _load_state = _do_iteration = _test_on = None


class FakeKeys:
    arm = "main"
    hyper_params = SimpleNamespace(seed=0)
    trainer_class = FakeTrainer


class FakeStore:
    def open(self, key):
        return Path("/store") / key


@pytest.fixture
def session(monkeypatch):
    FakeState.loaded.clear()
    monkeypatch.setattr(ArmSession, "instance", None)
    session = ArmSession(FakeKeys(), ExperimentSettings(), FakeStore())
    yield session
    session.close()


def test_the_state_is_read_unless_the_trainer_has_it_in_memory(session):
    trainer = session.trainer_at("a")
    assert trainer.state == "a"
    session.holds("b")
    assert session.trainer_at("b") is trainer
    assert FakeState.loaded == ["a"], "the state in memory must not be read"
    session.holds("b")
    session.trainer_at("c")
    assert FakeState.loaded == ["a", "c"], "a different run has computed the stage after b"


def test_the_state_is_read_again_after_the_trainer_was_handed_out(session):
    session.trainer_at("a")
    session.trainer_at("a")
    assert FakeState.loaded == ["a", "a"]
    session.holds("a")
    assert session.trainer is not None
    session.trainer_at("a")
    assert FakeState.loaded == ["a", "a", "a"]


def test_a_custom_trainer_is_rebuilt_for_each_stage(session, monkeypatch):
    monkeypatch.setattr(FakeTrainer, "__module__", "mine")
    first = session.trainer_at("a")
    session.holds("b")
    assert session.trainer_at("b") is not first
    assert FakeState.loaded == ["a", "b"]
