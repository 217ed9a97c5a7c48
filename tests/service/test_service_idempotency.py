"""Idempotency keys: one job per key, despite repeated requests and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

SERVER = """
import sys, threading, pathlib, importlib.util
spec = importlib.util.spec_from_file_location("service_conftest", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.RunningService(pathlib.Path(sys.argv[2]), module.FakeEngine()).serving() as service:
    print(service.url, flush=True)
    threading.Event().wait()
"""


def _create(client, file_id, key=None, header=None, **options):
    metadata = {"idempotency_key": key} if key else {}
    headers = {"Idempotency-Key": header} if header else {}
    return client.fine_tuning.jobs.create(
        model="ratchet-tiny",
        training_file=file_id,
        **{"metadata": {**metadata, "k": "v"}, "extra_headers": headers, **options},
    )


def test_header_and_metadata_name_the_same_job(gate, make_service, upload):
    with make_service().serving() as service, service.client() as client:
        file_id = upload(client)
        job = _create(client, file_id, key="once")
        assert _create(client, file_id, key="once").id == job.id
        assert _create(client, file_id, header="once").id == job.id
        assert _create(client, upload(client), header="once").id == job.id  # equal content
        assert _create(client, file_id, key="twice").id != job.id
        assert _create(client, file_id).id != _create(client, file_id).id
        with pytest.raises(openai.BadRequestError, match="different parameters") as caught:
            _create(client, file_id, key="once", suffix="other")
        assert caught.value.code == "idempotency_key_reused"
        with pytest.raises(openai.BadRequestError, match="differ; send one"):
            _create(client, file_id, key="once", header="twice")


def test_a_key_identifies_its_job_after_it_ended_and_its_file_was_deleted(
    make_service, upload, wait_for
):
    with make_service().serving() as service, service.client() as client:
        file_id = upload(client)
        job = wait_for(client, _create(client, file_id, key="once").id)
        client.files.delete(file_id)
        assert _create(client, file_id, key="once").id == job.id


def test_thirty_concurrent_creations_with_one_key_create_one_job(gate, make_service, upload):
    with make_service().serving() as service, service.client() as client:
        file_id = upload(client)
        barrier = threading.Barrier(30)

        def create(number):
            barrier.wait()
            key = {"key": "once"} if number % 2 else {"header": "once"}
            return _create(client, file_id, **key).id

        with ThreadPoolExecutor(30) as pool:
            ids = set(pool.map(create, range(30)))
        assert len(ids) == 1
        assert [job.id for job in client.fine_tuning.jobs.list()] == list(ids)


@pytest.mark.slow
def test_a_killed_service_restarts_its_running_job(gate, tmp_path, make_service, upload, wait_for):
    home = tmp_path / "home"
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parent / "conftest.py"), str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = process.stdout.readline().strip()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        file_id = upload(client)
        running = _create(client, file_id, key="once", seed=3)
        waiting = _create(client, file_id, key="then", seed=4)
        wait_for(client, running.id, "running")
        trainer = _first_pid(gate)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 10
    while _lives(trainer) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(trainer)
    (gate / "open").touch()
    with make_service(home).serving() as service, service.client() as client:
        assert _create(client, file_id, key="once", seed=3).id == running.id
        jobs = [wait_for(client, job.id) for job in (running, waiting)]
        assert [job.status for job in jobs] == ["succeeded", "succeeded"]
        messages = [event.message for event in client.fine_tuning.jobs.list_events(running.id)]
        assert "The service has restarted; the job will restart." in messages
        folder = service.service.models.get(jobs[0].fine_tuned_model).folder
        assert json.loads((folder / "config.json").read_text())["seed"] == 3


def test_a_stopped_service_retains_its_data(gate, make_service, tmp_path, upload, wait_for):
    (gate / "open").touch()
    first = make_service(tmp_path / "home")
    with first.serving() as service, service.client() as client:
        file_id = upload(client)
        done = wait_for(client, _create(client, file_id).id)
        (gate / "open").unlink()
        interrupted = _create(client, file_id, seed=9)
        wait_for(client, interrupted.id, "running")
    (first.settings.folder / "files" / "file-torn").write_bytes(b"{")
    (first.settings.folder / "models" / "ftjob-torn").mkdir()
    (gate / "open").touch()
    with make_service(tmp_path / "home").serving() as service, service.client() as client:
        assert wait_for(client, interrupted.id).status == "succeeded"
        ask = {"messages": [{"role": "user", "content": "?"}], "model": done.fine_tuned_model}
        assert client.chat.completions.create(**ask).choices
        assert client.files.retrieve(file_id).id == file_id
    assert not (first.settings.folder / "files" / "file-torn").exists()
    assert not (first.settings.folder / "models" / "ftjob-torn").exists()


def _first_pid(gate):
    deadline = time.monotonic() + 10
    while not (gate / "pids").exists() or not (gate / "pids").read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int((gate / "pids").read_text().split()[0])


def _lives(pid):
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
