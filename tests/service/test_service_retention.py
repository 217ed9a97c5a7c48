"""Automatic deletion by the service: deleted, retained and reported data."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time

import openai
import pytest

from ratchet.errors import ParameterError
from ratchet.language_models.local.adapters import AdapterBase
from ratchet.service.settings import RetentionRules, ServiceSettings

DAY = 86400
_OF_VERSION_4 = """
ALTER TABLE training_sessions DROP COLUMN metadata;
ALTER TABLE training_sessions DROP COLUMN new_optimizer;
DROP TABLE saved_weights; PRAGMA user_version = 4;
"""


def train(client, upload, wait_for, *, word="?", **more):
    job = client.fine_tuning.jobs.create(
        model=more.pop("model", "ratchet-tiny"), training_file=upload(client, word=word), **more
    )
    job = wait_for(client, job.id)
    assert job.status == "succeeded", job.error
    return job


def models_of(client):
    return {model.id for model in client.models.list()}


def files_of(client):
    return {file.id for file in client.files.list()}


def checkpoint_of(client, job):
    checkpoints = client.fine_tuning.jobs.checkpoints.list(job.id)
    (name,) = {c.fine_tuned_model_checkpoint for c in checkpoints} - {job.fine_tuned_model}
    return name


def grow_old(home, days=40):
    """Set the creation and use of everything in a home to a past time."""
    then = int(time.time() - days * DAY)
    with contextlib.closing(sqlite3.connect(home / "llm" / "service.sqlite3")) as connection:
        for table, column in (
            ("models", "created"),
            ("files", "created_at"),
            ("jobs", "created_at"),
        ):
            connection.execute(f"UPDATE {table} SET {column} = ?", (then,))
        connection.commit()
    for folder in (home / "llm" / "models").iterdir():
        os.utime(folder, (then, then))


def test_by_default_everything_is_kept(make_service, tmp_path, upload, wait_for):
    with make_service().serving() as service, service.client() as client:
        train(client, upload, wait_for)
        before = models_of(client)
    grow_old(tmp_path, 4000)
    with make_service().serving() as service, service.client() as client:
        train(client, upload, wait_for, word="another")
        assert before < models_of(client)
        assert len(before) == 3


def test_old_checkpoints_are_deleted_and_their_job_is_retained(
    make_service, upload, wait_for, tmp_path
):
    rules = RetentionRules(checkpoints=0)
    with make_service(retention=rules).serving() as service, service.client() as client:
        job = train(client, upload, wait_for, metadata={"ratchet_intent": "x"})
        gone = checkpoint_of(client, job)
        _await(lambda: gone not in models_of(client))
        assert job.fine_tuned_model in models_of(client)
        with pytest.raises(
            openai.NotFoundError, match=r"deleted on .* checkpoints, 0 are kept"
        ) as e:
            client.chat.completions.create(
                model=gone, messages=[{"role": "user", "content": "?"}], max_tokens=1
            )
        assert (e.value.code, e.value.param) == ("model_not_found", "model")
        weights = tmp_path / "llm" / "models"  # which are deleted after their row
        _await(lambda: {path.name for path in weights.iterdir()} == {job.id})


@pytest.mark.slow
def test_unused_models_and_files_are_deleted_unless_referenced(
    make_service, tmp_path, upload, wait_for
):
    with make_service().serving() as service, service.client() as client:
        start = train(client, upload, wait_for, word="e").fine_tuned_model
        of_a_run = train(
            client, upload, wait_for, word="a", model=start, metadata={"ratchet_intent": "x"}
        )
        unused = train(client, upload, wait_for, word="b")
        below = train(client, upload, wait_for, word="c")
        used = train(client, upload, wait_for, word="d", model=below.fine_tuned_model)
        never = upload(client, word="never trained on")
    whole, adapter = (tmp_path / "llm" / "models" / job.id for job in (below, used))
    (adapter / "adapter_config.json").write_text("{}")  # as if it were an adapter
    AdapterBase.of(below.fine_tuned_model, whole).write(adapter)
    grow_old(tmp_path)
    os.utime(adapter)  # requested today

    rules = RetentionRules(days=30)
    with make_service(retention=rules).serving() as service, service.client() as client:
        go = {unused.fine_tuned_model, checkpoint_of(client, unused)}
        _await(lambda: go.isdisjoint(models_of(client)))
        files_that_go = {never, unused.training_file, unused.result_files[0]}
        _await(lambda: files_that_go.isdisjoint(files_of(client)))  # after the models, one by one
        kept = {start} | {job.fine_tuned_model for job in (of_a_run, below, used)}
        kept.add(checkpoint_of(client, of_a_run))  # the number that the other rule sets
        assert kept <= models_of(client)
        for file_id in files_that_go:
            with pytest.raises(openai.NotFoundError, match=r"deleted on .*: unused for 30 days"):
                client.files.retrieve(file_id)
        for file_id in (of_a_run.training_file, of_a_run.result_files[0]):
            assert client.files.retrieve(file_id).id == file_id
        assert client.fine_tuning.jobs.retrieve(unused.id).status == "succeeded"


def test_a_forward_jump_of_the_clock_deletes_nothing(make_service, upload, wait_for, monkeypatch):
    rules = RetentionRules(days=30)
    with make_service(retention=rules).serving() as service, service.client() as client:
        job = train(client, upload, wait_for)
        system_time = time.time
        monkeypatch.setattr(time, "time", lambda: system_time() + 60 * DAY)
        later = train(client, upload, wait_for, word="later")  # deletes before it starts
        assert {job.fine_tuned_model, later.fine_tuned_model} <= models_of(client)


def test_deletions_by_clients_are_reported(make_service, upload, wait_for):
    with make_service().serving() as service, service.client() as client:
        job = train(client, upload, wait_for)
        client.models.delete(job.fine_tuned_model)
        with pytest.raises(openai.NotFoundError, match=r"deleted on .*: a client requested it"):
            client.models.retrieve(job.fine_tuned_model)
        again = train(client, upload, wait_for)  # whose checkpoint still has its name
        assert again.fine_tuned_model == f"{job.fine_tuned_model}-2"
        for name in (checkpoint_of(client, job), again.fine_tuned_model):
            client.models.delete(name)
        third = train(client, upload, wait_for)
        assert client.models.retrieve(third.fine_tuned_model).id == job.fine_tuned_model


def test_the_database_of_an_earlier_version_is_migrated(make_service, tmp_path, upload, wait_for):
    with make_service().serving() as service, service.client() as client:
        job = train(client, upload, wait_for)
    with contextlib.closing(sqlite3.connect(tmp_path / "llm" / "service.sqlite3")) as connection:
        connection.executescript(_OF_VERSION_4)
    with make_service().serving() as service, service.client() as client:
        assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model
        client.models.delete(job.fine_tuned_model)
        with pytest.raises(openai.NotFoundError, match=r"deleted on"):
            client.models.retrieve(job.fine_tuned_model)


def test_negative_rules_are_refused(tmp_path):
    for rules in ({"checkpoints": -1}, {"days": -0.5}):
        with pytest.raises(ParameterError, match="expected 0 or more"):
            ServiceSettings(home=tmp_path, retention=RetentionRules(**rules))


def _await(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
