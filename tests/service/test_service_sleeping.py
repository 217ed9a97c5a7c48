"""An engine releases its memory while a job trains; adapters of one base share batches."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from fake_engine import FakeEngine

from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.types import ChatMessage
from ratchet.service.batching import Batcher
from ratchet.service.models import StoredModel

HELLO = [{"role": "user", "content": "?"}]


class DrowsyEngine(FakeEngine):
    """Sleeps on request, and refuses to work until it wakes."""

    shares_base = True
    sleeps = True

    def __init__(self):
        super().__init__()
        self.awake = True
        self.said = []
        self.fails = False
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def sleep(self):
        self.said.append("sleep")
        if self.fails:
            raise RuntimeError("cannot sleep")
        self.awake = False

    def wake_up(self):
        self.said.append("wake_up")
        self.awake = True

    def load(self, model_id, folder, adapters=()):
        self.loaded[model_id] = (folder, tuple(adapters))

    def generate(self, requests):
        assert self.awake
        self.began.set()
        assert self.goes_on.wait(30)
        return super().generate(requests)


@pytest.fixture
def service(running_service, tmp_path):
    with running_service(tmp_path, DrowsyEngine()).serving() as service:
        yield service


def _create(client, upload):
    return client.fine_tuning.jobs.create(model="ratchet-tiny", training_file=upload(client))


def _pids(gate):
    """The started trainers: they wait at the gate."""
    file = gate / "pids"
    return file.read_text().splitlines() if file.exists() else []


def _await(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _say(client):
    return client.chat.completions.create(model="ratchet-tiny", messages=HELLO, seed=1)


def test_the_engine_sleeps_while_a_job_trains(service, upload, wait_for, gate):
    with service.client() as client:
        before = _say(client)
        job = _create(client, upload)
        _await(lambda: _pids(gate))
        assert service.engine.said == ["sleep"]  # before training starts
        answers = []
        asking = threading.Thread(target=lambda: answers.append(_say(client)))
        asking.start()
        time.sleep(0.3)
        assert not answers
        (gate / "open").touch()
        asking.join(20)
        assert answers[0].choices[0].message.content == before.choices[0].message.content
        assert service.engine.said == ["sleep", "wake_up"]
        assert wait_for(client, job.id).status == "succeeded"


def test_a_cancelled_job_returns_the_memory(service, upload, gate):
    with service.client() as client:
        job = _create(client, upload)
        _await(lambda: _pids(gate))
        client.fine_tuning.jobs.cancel(job.id)
        assert _say(client).choices
        assert service.engine.said == ["sleep", "wake_up"]


def test_an_engine_that_cannot_sleep_continues_to_answer(service, upload, wait_for, gate):
    service.engine.fails = True
    with service.client() as client:
        job = _create(client, upload)
        _await(lambda: _pids(gate))
        assert _say(client).choices
        (gate / "open").touch()
        assert wait_for(client, job.id).status == "succeeded"
        assert service.engine.said == ["sleep"]


def test_an_engine_without_sleep_does_not_delay_jobs(service, upload, wait_for, gate):
    service.service.batcher._sleeper = None
    with service.client() as client:
        service.engine.goes_on.clear()
        asking = threading.Thread(target=_say, args=(client,))
        asking.start()
        assert service.engine.began.wait(20)
        job = _create(client, upload)
        _await(lambda: _pids(gate))
        assert asking.is_alive()
        service.engine.goes_on.set()
        asking.join(20)
        (gate / "open").touch()
        assert wait_for(client, job.id).status == "succeeded"
    assert service.engine.said == []


def test_a_service_stops_while_its_engine_sleeps(running_service, tmp_path, upload, gate):
    with (
        running_service(tmp_path, DrowsyEngine()).serving() as service,
        service.client() as client,
    ):
        _create(client, upload)
        _await(lambda: _pids(gate))
    assert service.engine.said[0] == "sleep"


@pytest.mark.parametrize("shares_base", [True, False])
def test_models_on_one_base_share_a_batch_if_the_engine_supports_it(tmp_path, shares_base):
    engine = DrowsyEngine()
    engine.shares_base = shares_base
    base, other = (StoredModel(name, tmp_path / name, name) for name in ("base", "other"))
    adapters = [StoredModel(n, tmp_path / n, "base", (tmp_path / "base",)) for n in ("x", "y", "z")]
    for model in (base, other, *adapters):
        model.folder.mkdir()
    batcher = Batcher(lambda: engine, waiting_max=20, loaded_max=3)
    batcher.start(base)
    batcher.ready.result(10)

    async def ask():
        asked = [base, adapters[0], other, adapters[1], adapters[0], adapters[2]]
        requests = [GenerationRequest(m.id, (ChatMessage("user", "?"),), 1) for m in asked]
        tasks = [batcher.generate(m, [r]) for m, r in zip(asked, requests, strict=True)]
        return await asyncio.gather(*tasks)

    try:
        together = asyncio.run(ask())
    finally:
        batcher.stop()
    assert len(together) == 6
    batches = [[request.model for request in batch] for batch in engine.batches]
    if shares_base:  # no more models at a time than may be loaded
        assert batches == [["base", "x", "y", "x"], ["other"], ["z"]]
        assert engine.loaded["z"] == (tmp_path / "base", (tmp_path / "z",))
    else:
        assert batches == [["base"], ["x", "x"], ["other"], ["y"], ["z"]]
