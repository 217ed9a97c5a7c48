"""Batching of concurrent requests by model, and isolation of failures."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ratchet.language_models.engines.interface import (
    EngineError,
    EngineStoppedError,
    GenerationRequest,
    GenerationResult,
    QueueFullError,
    RequestRefusedError,
)
from ratchet.language_models.types import ChatMessage
from ratchet.service import batching, memory
from ratchet.service.api.errors import from_engine
from ratchet.service.batching import Batcher
from ratchet.service.models import StoredModel


class GatedEngine:
    """Engine that blocks until its gate opens; a batch with seed 13 fails, seed 7 is refused."""

    max_batch_size = 8

    def __init__(self):
        self.gate = threading.Event()
        self.began = threading.Event()
        self.calls = []

    def load(self, model_id, folder, adapters=()):
        self.calls.append(("load", model_id))

    def unload(self, model_id):
        self.calls.append(("unload", model_id))

    def generate(self, requests):
        self.began.set()
        assert self.gate.wait(10)
        seeds = [request.seed for request in requests]
        self.calls.append((requests[0].model, sorted(seeds)))
        assert len({request.model for request in requests}) == 1
        if 13 in seeds:
            raise RuntimeError("out of memory")
        return [
            RequestRefusedError("too long", param="messages", code="context_length_exceeded")
            if seed == 7
            else GenerationResult(str(seed), "stop", 1, 1)
            for seed in seeds
        ]


def _request(model, seed):
    return GenerationRequest(model.id, (ChatMessage("user", "?"),), seed)


@pytest.fixture
def models(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return [StoredModel(name, Path(tmp_path), name) for name in "abcd"]


@pytest.fixture
def engine():
    return GatedEngine()


@pytest.fixture
def batcher(engine, models):
    made = Batcher(lambda: engine, waiting_max=20, loaded_max=2)
    made.start(models[0])
    yield made
    engine.gate.set()
    made.stop()


def _ask(batcher, engine, asked, *, hold=None):
    """Send all requests concurrently, blocking the engine until all are queued."""

    async def run():
        tasks = []
        if hold is not None:
            first = asyncio.create_task(batcher.generate(hold, [_request(hold, 0)]))
            await asyncio.to_thread(engine.began.wait, 10)
            tasks.append(first)
        for model, seed in asked:
            tasks.append(asyncio.create_task(batcher.generate(model, [_request(model, seed)])))
        await asyncio.sleep(0.05)
        engine.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


def test_all_queued_requests_for_one_model_form_one_batch(batcher, engine, models):
    a, b, *_ = models
    answers = _ask(batcher, engine, [(a, 1), (b, 2), (a, 3), (b, 4), (a, 5)], hold=a)
    assert [answer[0].text for answer in answers] == ["0", "1", "2", "3", "4", "5"]
    assert [call for call in engine.calls if call[0] in "ab"] == [
        ("a", [0]),
        ("a", [1, 3, 5]),
        ("b", [2, 4]),
    ]


def test_a_batch_never_exceeds_the_engines_limit(batcher, engine, models):
    _ask(batcher, engine, [(models[0], seed) for seed in range(20, 39)], hold=models[0])
    sizes = [len(call[1]) for call in engine.calls if call[0] == "a"]
    assert sizes == [1, 8, 8, 3]


def test_a_refused_request_fails_alone_and_a_broken_batch_fails_together(batcher, engine, models):
    a, b, *_ = models
    answers = _ask(batcher, engine, [(a, 7), (a, 1), (b, 13), (b, 2)], hold=a)
    assert isinstance(answers[1], RequestRefusedError)
    assert from_engine(answers[1]).status == 400
    assert from_engine(answers[1]).code == "context_length_exceeded"
    assert answers[2][0].text == "1"
    assert [from_engine(answer).status for answer in answers[3:]] == [500, 500]
    assert "out of memory" not in str(answers[3])
    assert _ask(batcher, engine, [(a, 4)])[0][0].text == "4"


def test_too_many_queued_completions_are_refused_immediately(batcher, engine, models):
    answers = _ask(batcher, engine, [(models[0], seed) for seed in range(20, 43)], hold=models[0])
    refused = [from_engine(answer) for answer in answers if isinstance(answer, QueueFullError)]
    assert [error.status for error in refused] == [429] * 3
    assert refused[0].headers == {"Retry-After": "1"}


def test_the_least_recently_used_model_is_unloaded(batcher, engine, models):
    for name in (0, 1, 0, 2, 1):
        _ask(batcher, engine, [(models[name], 1)])
    moves = [call for call in engine.calls if call[0] in ("load", "unload")]
    assert moves == [
        *[("load", "a"), ("load", "b"), ("unload", "b"), ("load", "c")],
        *[("unload", "a"), ("load", "b")],
    ]


def test_models_are_unloaded_until_the_next_has_room(
    batcher, engine, models, monkeypatch, tmp_path
):
    (tmp_path / "model.safetensors").write_bytes(bytes(7))
    monkeypatch.setattr(
        batching, "has_room", lambda size: size < 7 or ("unload", "a") in engine.calls
    )
    for name in (0, 1):
        _ask(batcher, engine, [(models[name], 1)])
    moves = [call for call in engine.calls if call[0] in ("load", "unload")]
    assert moves == [("load", "a"), ("unload", "a"), ("load", "b")]


def test_an_adapter_needs_room_for_itself_if_its_base_is_in_memory(tmp_path):
    bases = {"whole": "bfloat16", "float32": "float32"}
    for name, dtype in bases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(100))
        (tmp_path / name / "config.json").write_text(json.dumps({"dtype": dtype}))
    adapters = {
        "adapter": ("q.lora_A.weight", {}),
        "experts": ("q.lora_A.weight", {"target_parameters": ["mlp.experts"]}),
        "embeddings": ("embed_tokens.weight", {}),
        "old experts": ("mlp.experts.1.w1.lora_A.weight", {}),
        "pissa": ("q.lora_A.weight", {"init_lora_weights": "pissa"}),
    }
    for name, (weight, config) in adapters.items():
        (tmp_path / name).mkdir()
        header = json.dumps({weight: {}, "__metadata__": {}}).encode()
        content = len(header).to_bytes(8, "little") + header
        (tmp_path / name / "adapter_model.safetensors").write_bytes(content)
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))

    def model(name, *below):
        return StoredModel(name, tmp_path / name, "", tuple(tmp_path / each for each in below))

    adapter, whole = model("adapter", "whole"), model("whole")
    size = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    assert adapter.bytes_to_load([]) == whole.bytes_to_load([model("float32")]) == 100
    assert adapter.bytes_to_load([whole]) == size
    two = model("adapter", "whole", "adapter")
    assert two.bytes_to_load([model("float32"), adapter]) == 2 * size
    assert whole.bytes_to_load([adapter]) == 0
    for name in adapters.keys() - {"adapter"}:
        assert adapter.bytes_to_load([model(name, "whole")]) == 100
        assert model(name, "whole").bytes_to_load([whole]) == 100
    assert model("adapter", "float32").bytes_to_load([model("float32")]) == 100
    shutil.rmtree(tmp_path / "adapter")
    assert whole.bytes_to_load([adapter]) == 0, "the folder of a loaded model may be deleted"


@pytest.mark.parametrize("gpu", [False, True])
def test_large_models_leave_an_eighth_of_the_memory(monkeypatch, gpu):
    size = 2**30
    machine = SimpleNamespace(available=3 * size, total=16 * size)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 * size, 16 * size))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * size)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2 * size)
    assert memory.has_room(size)
    assert not memory.has_room(size + 1)
    machine.available = 0
    assert memory.has_room(2**26), "small models always have room"


def test_queued_requests_fail_when_the_service_stops(engine, models):
    batcher = Batcher(lambda: engine, waiting_max=20, loaded_max=2)
    batcher.start(models[0])

    async def run():
        first = asyncio.create_task(batcher.generate(models[0], [_request(models[0], 1)]))
        await asyncio.to_thread(engine.began.wait, 10)
        second = asyncio.create_task(batcher.generate(models[0], [_request(models[0], 2)]))
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(asyncio.to_thread(batcher.stop))
        await asyncio.sleep(0.05)
        engine.gate.set()
        await stopping
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = asyncio.run(run())
    assert first[0].text == "1"
    assert isinstance(second, EngineStoppedError)
    assert from_engine(second).status == 503


def test_an_engines_failure_to_start_is_reported(models):
    def broken():
        raise OSError("no such device")

    batcher = Batcher(broken, waiting_max=1, loaded_max=1)
    batcher.start(models[0])
    with pytest.raises(OSError, match="no such device"):
        batcher.ready.result(5)
    batcher.stop()


class ThreadKilled(BaseException):
    """Exception that ends the engine's thread, unlike a batch's exception."""


def test_an_engine_whose_thread_ends_leaves_no_request_waiting(
    batcher, engine, models, monkeypatch
):
    a, b, *_ = models
    generate = engine.generate

    def killed(requests):
        generate(requests)
        raise ThreadKilled

    monkeypatch.setattr(engine, "generate", killed)
    answers = _ask(batcher, engine, [(a, 1), (b, 2), (a, 3)], hold=a)
    assert [type(answer) for answer in answers] == [EngineError] * 4
    (later,) = _ask(batcher, engine, [(b, 4)])
    assert from_engine(later).status == 500
    assert "The engine has ended (ThreadKilled); restart the service." in str(later)


def test_a_model_that_is_not_unloaded_does_not_end_the_engine(batcher, engine, models, monkeypatch):
    def broken(model_id):
        raise RuntimeError(model_id)

    monkeypatch.setattr(engine, "unload", broken)
    batcher.ready.result(5)
    batcher.forget(models[0].id)
    assert _ask(batcher, engine, [(models[0], 4)])[0][0].text == "4"


def test_requests_that_wait_for_an_engine_that_does_not_start_fail(models):
    start = threading.Event()

    def broken():
        assert start.wait(10)
        raise OSError("no such device")

    batcher = Batcher(broken, waiting_max=5, loaded_max=1)
    batcher.start(models[0])

    async def run():
        waiting = asyncio.create_task(batcher.generate(models[0], [_request(models[0], 1)]))
        await asyncio.sleep(0.05)
        start.set()
        return await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 10)

    (failure,) = asyncio.run(run())
    assert isinstance(failure, EngineError)
    with pytest.raises(OSError, match="no such device"):
        batcher.ready.result(5)
    batcher.stop()
