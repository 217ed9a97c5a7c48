"""A full disk fails no job: it is reported and retried, and the job ends as usual."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import sqlite3
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest

from ratchet.errors import StalledJobError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.service.api.schemas.fine_tuning import CreateJobRequest
from ratchet.service.jobs.jobs import add_event
from ratchet.service.jobs.trainer_process import TrainerProcess
from ratchet.service.models import StoredModel


def health_of(url):
    with urllib.request.urlopen(url.removesuffix("/v1") + "/health", timeout=5) as answer:
        return json.load(answer)


def await_health(url, status, seconds=60):
    deadline = time.monotonic() + seconds
    while (health := health_of(url))["status"] != status:
        assert time.monotonic() < deadline, health
        time.sleep(0.02)
    return health


def stalls(url, job_id):
    """Wait as a run does, and return the client's error."""
    client = FineTuneClient(Endpoint(url))
    with pytest.raises(StalledJobError) as error:
        asyncio.run(client.wait([job_id], 0.02, 0.02, stall_seconds=0.2))
    return str(error.value)


@pytest.fixture
def served(make_service):
    with make_service().serving() as service:
        yield service


@pytest.fixture
def client(served):
    with served.client() as client:
        yield client


def create(client, file_id, **options):
    return client.fine_tuning.jobs.create(model="ratchet-tiny", training_file=file_id, **options)


def test_a_trainer_restarts_after_a_full_disk(gate, served, client, upload, wait_for):
    (gate / "open").touch()
    (gate / "full").touch()
    job = create(client, upload(client))
    health = await_health(served.url, "degraded")
    assert "No space left on device" in health["reason"]
    assert (health["instance"], health["model"]) == ("test", "ratchet-tiny")
    assert "No space left on device" in stalls(f"{served.url}/v1", job.id)
    (gate / "full").unlink()
    assert wait_for(client, job.id).status == "succeeded"
    await_health(served.url, "ok")
    messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id)]
    assert any("starts over" in message for message in messages)


def test_nothing_is_trained_while_there_is_no_space_for_the_model(
    gate, served, client, upload, wait_for, monkeypatch
):
    (gate / "open").touch()
    disk, started = SimpleNamespace(free=99), []
    start_job = TrainerProcess.start_job
    monkeypatch.setattr(StoredModel, "weight_bytes", 100)
    monkeypatch.setattr("ratchet.service.jobs.runner.shutil.disk_usage", lambda _: disk)
    monkeypatch.setattr(
        TrainerProcess,
        "start_job",
        lambda self, folder: (started.append(folder), start_job(self, folder)),
    )
    job = create(client, upload(client))
    assert "No space left on device" in await_health(served.url, "degraded")["reason"]
    assert not started
    disk.free = 100
    assert wait_for(client, job.id).status == "succeeded"
    assert len(started) == 1


def test_a_full_database_ends_no_thread(served, client, upload, wait_for):
    """SQLite's own "database or disk is full", before a job could be started."""
    database = served.service.database
    request = CreateJobRequest(model="ratchet-tiny", training_file=upload(client))
    job = served.service.jobs.create(request, None)  # the thread is not notified yet
    most = database.row("PRAGMA max_page_count")[0]
    database.row("PRAGMA max_page_count = 1")  # which allows only the current size
    with contextlib.suppress(sqlite3.Error):
        while True:
            with database.transaction() as connection:
                add_event(connection, job.id, "x")
    served.service.runner.wake()
    assert "database or disk is full" in await_health(served.url, "degraded")["reason"]
    assert "database or disk is full" in stalls(f"{served.url}/v1", job.id)
    database.row(f"PRAGMA max_page_count = {most}")
    assert wait_for(client, job.id).status == "succeeded"
    assert wait_for(client, create(client, request.training_file).id).status == "succeeded"
    await_health(served.url, "ok")


def test_an_upload_to_a_full_disk_gets_a_507_with_the_reason(served, client, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    chat = [{"role": "user", "content": "same"}, {"role": "assistant", "content": "Decision"}]
    data = (json.dumps({"messages": chat}) + "\n").encode()
    monkeypatch.setattr("ratchet.service.files.shutil.copyfileobj", full)
    with pytest.raises(openai.APIStatusError, match="No space left on device") as caught:
        client.with_options(max_retries=0).files.create(file=("t", data), purpose="fine-tune")
    assert caught.value.status_code == 507
    assert caught.value.code == "insufficient_storage"
    monkeypatch.undo()
    assert not list(client.files.list()), "no part of it is left"
    assert client.files.create(file=("t", data), purpose="fine-tune").bytes == len(data)


def test_a_request_with_a_full_database_gets_a_507(served, client, upload):
    file_id = upload(client)
    database = served.service.database
    most = database.row("PRAGMA max_page_count")[0]
    database.row("PRAGMA max_page_count = 1")
    impatient = client.with_options(max_retries=0)

    def fill():
        while True:
            create(impatient, file_id, suffix="x" * 18)

    with pytest.raises(openai.APIStatusError, match="database or disk is full") as caught:
        fill()
    assert caught.value.status_code == 507
    database.row(f"PRAGMA max_page_count = {most}")


def test_a_dead_thread_is_reported(served):
    runner = served.service.runner
    runner._stopping.set()
    runner.wake()
    runner._thread.join()
    assert "has ended" in await_health(served.url, "degraded")["reason"]


@pytest.mark.slow
def test_a_temporarily_full_disk_gives_the_same_model(micro_service, tmp_path):
    """Neither service nor trainer can write a byte for a while (RLIMIT_FSIZE, set from outside)."""
    process, url = micro_service
    chat = [{"role": "user", "content": "same"}, {"role": "assistant", "content": "Decision"}]
    data = (json.dumps({"messages": chat}) + "\n").encode() * 32
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        name = client.models.list().data[0].id
        file_id = client.files.create(file=("t.jsonl", data), purpose="fine-tune").id
        options = {"hyperparameters": {"n_epochs": 12, "batch_size": 1}, "seed": 1}
        options |= {"model": name, "training_file": file_id}
        undisturbed = finished(client, client.fine_tuning.jobs.create(**options, suffix="a"))
        job = client.fine_tuning.jobs.create(**options, suffix="b")
        waiting = client.fine_tuning.jobs.create(**options, suffix="c")
        while not client.fine_tuning.jobs.list_events(job.id).data[0].data:
            time.sleep(0.01)
        limit_files(process.pid, 1)
        await_health(url, "degraded")
        assert client.fine_tuning.jobs.retrieve(job.id).status in ("queued", "running")
        assert "degraded" in stalls(url, job.id)
        limit_files(process.pid, resource.RLIM_INFINITY)
        ended = [finished(client, job), finished(client, waiting)]
        await_health(url, "ok")
    weights = [
        (tmp_path / "llm" / "models" / one.id / "model.safetensors").read_bytes()
        for one in (undisturbed, *ended)
    ]
    assert weights[0] == weights[1] == weights[2]


def limit_files(pid, size):
    """Limit the size of files that a process and its trainers can write."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children += [c for task in tasks for c in (task / "children").read_text().split()]
    for one in {pid, *map(int, children)}:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(one, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def finished(client, job, seconds=120):
    deadline = time.monotonic() + seconds
    while job.status in ("queued", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "succeeded", job.error
    return job
