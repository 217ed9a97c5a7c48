"""Chats that join a running batch, and requests that wait for its end."""

from __future__ import annotations

import asyncio
import threading

import pytest
from micro_model import write_micro_model

from ratchet.language_models.engines.interface import (
    EmbeddingRequest,
    EngineError,
    GenerationRequest,
    RequestRefusedError,
)
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.service.batching import Batcher
from ratchet.service.models import StoredModel

LONG = 120  # tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("micro") / "m")


@pytest.fixture
def engine():
    return TorchEngine(max_batch_size=8)


@pytest.fixture
def service(engine, folder):
    running = Service(engine, folder)
    yield running
    running.batcher.stop()


class Service:
    """A batcher with two models; the engine's thread waits while a test sends requests."""

    def __init__(self, engine, folder):
        self.models = {name: StoredModel(name, folder, name) for name in "ab"}
        self.batcher = Batcher(lambda: engine, waiting_max=500, loaded_max=2)
        self.batcher.start(self.models["a"])
        self.ended = []

    def run(self, **chats):
        """Send chats together; return the results and errors of these and later ones by name."""

        async def run():
            self._loop, self._tasks = asyncio.get_running_loop(), {}
            self._start(chats)
            while any(not task.done() for task in self._tasks.values()):
                await asyncio.wait(self._tasks.values())
            return {name: task.exception() or task.result() for name, task in self._tasks.items()}

        return asyncio.run(run())

    def send(self, **chats):
        """Queue further chats from the engine's thread."""

        async def start():
            self._start(chats)
            await asyncio.sleep(0)  # each task runs until it waits for its result

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)

    def _start(self, chats):
        for name, request in chats.items():
            self._tasks[name] = asyncio.create_task(self._ask(name, request))

    async def _ask(self, name, request):
        ask = self.batcher.embed if isinstance(request, EmbeddingRequest) else self.batcher.generate
        try:
            (result,) = await ask(self.models[request.model], [request])
        finally:
            self.ended.append(name)
        return result


def chat(model="a", seed=0, **values):
    values = {"max_tokens": 3, "temperature": 0.0, "prompt": (5, 6, 7), **values}
    return GenerationRequest(model, (), seed, **values)


def long_chat(act=lambda: None, **values):
    """Return a chat that acts in the engine's thread after its first text."""
    pieces = []

    def on_piece(piece):
        pieces.append(piece)
        if len(pieces) == 1:
            act()

    return chat(max_tokens=LONG, on_piece=on_piece, **values)


def test_a_chat_that_arrives_while_another_runs_is_answered_first(service):
    answers = service.run(long=long_chat(lambda: service.send(short=chat(seed=1))))
    assert service.ended == ["short", "long"]
    assert answers["long"].completion_tokens == LONG
    assert answers["short"] == service.run(alone=chat(seed=1))["alone"]


def test_short_chats_of_a_batch_are_answered_before_the_long_ones(service):
    service.run(long=long_chat(), **{f"short{n}": chat(max_tokens=n) for n in (9, 3, 6)})
    assert service.ended == ["short3", "short6", "short9", "long"]


def test_nothing_joins_once_another_models_request_waits(service):
    def send():
        service.send(early=chat(max_tokens=5))
        service.send(other=chat("b"))
        service.send(**{f"late{number}": chat() for number in range(20)})

    service.run(long=long_chat(send))
    assert service.ended[:3] == ["early", "long", "other"]
    assert len(service.ended) == 23


def test_an_embedding_waits_for_the_batch_and_later_chats_for_the_embedding(service):
    def send():
        service.send(text=EmbeddingRequest("a", (5, 6)), late=chat())

    service.run(long=long_chat(send))
    assert service.ended == ["long", "text", "late"]


def test_a_deleted_model_is_unloaded_although_requests_to_it_arrive(service, engine):
    def send():
        service.batcher.forget("a")
        service.send(late=chat())

    service.run(long=long_chat(send))
    assert service.ended == ["long", "late"]


def test_a_refused_request_fails_alone_and_immediately(service):
    answers = service.run(
        long=long_chat(lambda: service.send(bad=chat(prompt=(5,) * 5000), short=chat()))
    )
    assert service.ended == ["bad", "short", "long"]
    assert isinstance(answers["bad"], RequestRefusedError)
    assert answers["long"].completion_tokens == LONG


def test_an_error_fails_the_requests_that_run_and_not_those_that_wait(service):
    def fail():
        service.send(other=chat("b"), late=chat())
        raise RuntimeError("out of memory")

    answers = service.run(long=long_chat(lambda: service.send(joined=long_chat(fail))))
    assert [type(answers[name]) for name in ("long", "joined")] == [EngineError] * 2
    assert answers["other"] == answers["late"]
    assert service.ended == ["long", "joined", "other", "late"]


def test_an_engine_that_forgets_a_request_fails_it(service, engine, monkeypatch):
    monkeypatch.setattr(engine, "generate_continuously", lambda model_id, take: take(1))
    answer = service.run(short=chat())["short"]
    assert isinstance(answer, EngineError)


def test_the_row_of_a_client_that_has_gone_is_freed(service, engine, monkeypatch):
    service.batcher.ready.result(10)
    model = engine._loaded["a"].model
    step, gone, count = model.step, threading.Event(), []

    def counted(tokens, cache):
        count.append(len(tokens))
        if len(count) > 1:  # the first two tokens are one character
            assert gone.wait(10)
        return step(tokens, cache)

    async def listen():
        stream = service.batcher.stream(service.models["a"], [chat(max_tokens=LONG)])
        await anext(stream)
        await stream.aclose()
        gone.set()

    monkeypatch.setattr(model, "step", counted)
    asyncio.run(listen())
    service.run(other=chat("b"))
    assert len(count) <= 2
