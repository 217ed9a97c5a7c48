"""Deletion of training sessions and of the models that they uploaded and saved."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

import pytest
from micro_model import write_micro_model

from ratchet.language_models.connection import StatusError
from ratchet.language_models.training_service import OptimizerSettings, TrainingExample, connect
from ratchet.language_models.training_service.client import RatchetClient
from ratchet.service.api.errors import ApiError
from ratchet.service.api.routes.models import add_model
from ratchet.service.settings import RetentionRules

MODEL = "ratchet-tiny"
EXAMPLES = [TrainingExample((1, 2, 3), (0, 1, 1), advantages=(0, -1.0, 2.0))]
DAY = 86400


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("model") / MODEL)


def bring(service, model, name):
    files = {file.name: file.read_bytes() for file in model.iterdir() if file.suffix != ".lock"}
    return add_model(service.service.models, name, files)


def learn(service, *, saves=1, **asked):
    """Open a session and take a step before each save; return its id and the models."""
    made = []
    with connect(service.url, **{"model": MODEL, **asked}) as session:
        for number in range(saves):
            session.forward_backward(EXAMPLES, loss="ppo", loss_config={}, sequence=3 * number)
            session.optim_step(OptimizerSettings(1e-2), sequence=3 * number + 1)
            save = {"name": "w", "optimizer": True}
            made.append(session.save_weights(sequence=3 * number + 2, **save))
        return session.session_id, *made


def grow_old(home, keep=()):
    """Set the last use of all sessions and models, except sessions in ``keep``, to 40 days ago."""
    then = int(time.time() - 40 * DAY)
    with contextlib.closing(sqlite3.connect(home / "llm" / "service.sqlite3")) as connection:
        connection.execute("UPDATE models SET created = ?", (then,))
        connection.execute("UPDATE training_sessions SET created_at = ?", (then,))
        connection.execute("UPDATE training_sessions SET used_at = ?", (then,))
        for session in keep:
            connection.execute(
                "UPDATE training_sessions SET used_at = ? WHERE id = ?", (int(time.time()), session)
            )
        connection.commit()
    for folder in (home / "llm" / "models").iterdir():
        os.utime(folder, (then, then))


def models_of(service):
    with service.client() as client:
        return {model.id for model in client.models.list()} - {MODEL}


def sessions_of(service):
    return {session.id for session in service.service.training.records.all()}


def test_unused_sessions_and_models_are_deleted_unless_needed(make_service, tmp_path, model):
    with make_service(model=model).serving() as service:
        unused, brought = bring(service, model, "unused"), bring(service, model, "brought")
        run, of_a_run = learn(service, intent="of a run", model=brought)
        further, next_of_it = learn(service, model=of_a_run, resume=True, intent="next of the run")
        drawn, of_nobody = learn(service)
        live, of_live = learn(service)
        with connect(service.url, model=MODEL, intent="plays alone") as session:
            plays = session.session_id
    grow_old(tmp_path, keep=[live])
    with make_service(model=model, retention=RetentionRules(days=30)).serving() as service:
        _await(lambda: sessions_of(service) == {run, further, live})
        assert models_of(service) == {brought, of_a_run, next_of_it}
        folders = {path.name for path in (tmp_path / "llm" / "training").iterdir()}
        assert folders == {run, further, live}
        for name in (unused, of_nobody, of_live):
            with pytest.raises(ApiError, match=r"deleted on .*: unused for 30 days"):
                service.service.models.get(name)
        with pytest.raises(ApiError, match=r"deleted on .*: unused for 30 days"):
            service.service.training.records.row(drawn)
        with connect(service.url, model=MODEL, intent="plays alone") as session:
            assert session.session_id == plays
        learn(service, model=next_of_it, resume=True)


def test_recently_used_and_queued_sessions_are_retained(make_service, tmp_path, model):
    with make_service(model=model).serving() as service:
        opened, asked, waiting, _ = (learn(service, intent=i, saves=0)[0] for i in "abcd")
        brought = bring(service, model, "brought")
        service.service.training.records.accept(waiting, "optim_step", 0, "{}")
        grow_old(tmp_path)
        learn(service, intent="a", saves=0)
        service.service.training.records.accept(asked, "optim_step", 0, "{}")
        service.service.models.get(brought)
        assert service.service.models.last_used(brought) > time.time() - DAY
        (gone,) = service.service.training.records.unused(time.time() - 30 * DAY)
        assert gone not in (opened, asked, waiting)


def test_a_sessions_last_models_and_initial_models_of_others_are_retained(
    make_service, tmp_path, model
):
    rules = RetentionRules(checkpoints=1)
    with make_service(model=model, retention=rules).serving() as service:
        _, *made = learn(service, saves=2)
        learn(service, model=made[0])
        _, *others = learn(service, saves=4, seed=1)
        service.service.runner.wake()
        _await(lambda: set(others[:2]).isdisjoint(models_of(service)))
        assert {*made, *others[2:]} <= models_of(service)


def test_files_are_synced_before_their_row_is_written(make_service, tmp_path, model, monkeypatch):
    events = []

    def fsync(descriptor, own=os.fsync):
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        own(descriptor)

    with make_service(model=model).serving() as service:
        monkeypatch.setattr(os, "fsync", fsync)
        service.service.database._connection.set_trace_callback(events.append)
        session, saved = learn(service)
        brought = bring(service, model, "brought")
        service.service.database._connection.set_trace_callback(None)
        told = [str(event) for event in events]
        folder = tmp_path / "llm" / "training" / session
        snapshot = next(n for n, event in enumerate(told) if "SET snapshot" in event)
        assert {str(folder / "state-2.part"), str(folder), str(folder.parent)} <= set(
            told[:snapshot]
        )
        for name, aside in ((saved, "saved"), (brought, "upload-")):
            place = service.service.models.get(name).folder
            row = next(
                n for n, event in enumerate(told) if "INTO models" in event and name in event
            )
            synced = {Path(event).name for event in told[:row] if f"/{aside}" in event}
            assert {path.name for path in place.iterdir()} <= synced
            assert str(place.parent) in told[:row]


@pytest.mark.parametrize("broken", [b"", b"\x08", b"no weights at all", "cut"])
def test_unreadable_weights_are_refused(make_service, model, broken, tmp_path):
    files = {file.name: file.read_bytes() for file in model.iterdir() if file.suffix != ".lock"}
    files["model.safetensors"] = files["model.safetensors"][:-7] if broken == "cut" else broken
    folder = tmp_path / "given"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with (
        make_service(model=model).serving() as service,
        contextlib.closing(RatchetClient(service.url)) as link,
        pytest.raises(StatusError, match=r"model\.safetensors: cannot be read") as error,
    ):
        link.upload(folder, "broken")
    assert error.value.status == 400
    assert list((tmp_path / "llm" / "models").iterdir()) == []


def test_files_of_deleted_sessions_are_removed_at_start_up(make_service, tmp_path, model):
    rest = tmp_path / "llm" / "training" / "ts-gone"
    rest.mkdir(parents=True)
    (rest / "state-2.safetensors").write_bytes(b"x")
    with make_service(model=model).serving():
        assert not rest.exists()


def _await(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
