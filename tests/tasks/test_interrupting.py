"""Computations in threads are interrupted when their result is no longer awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.stages import decorator
from tasks.stages.failures import StageInterrupted
from tasks.stages.session import BaseSession


@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that creates requests of stages without arguments, in one thread."""
    with ThreadPoolExecutor(1) as executor:

        def make(work: Any, *, alone: bool = True) -> Any:
            monkeypatch.setattr(decorator, "make_stage", lambda *_, **__: work())
            stage = SimpleNamespace(alone=alone)
            session = BaseSession(None, None, None, executor)  # type: ignore[arg-type]
            return decorator._Request(stage, None, "work", session, force=False)

        yield make


async def _cancel(request: Any, begun: threading.Event) -> None:
    task = asyncio.ensure_future(request.fulfil())
    assert await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_computing_stage_is_interrupted_and_cleans_up(request_of: Any) -> None:
    begun, ended = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            begun.set()
            while True:
                time.sleep(0.001)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            ended.set()

    request = request_of(work)
    asyncio.run(_cancel(request, begun))
    assert ended.wait(5)
    assert [type(error) for error in raised] == [StageInterrupted]
    assert request.session.executor.submit(lambda: "next").result(5) == "next"


def test_a_stage_that_waits_for_paid_responses_is_not_interrupted(request_of: Any) -> None:
    begun, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(5)
        ended.set()

    asyncio.run(_cancel(request_of(work, alone=False), begun))
    go_on.set()
    assert ended.wait(5)


def test_work_that_has_not_started_or_has_ended_is_not_interrupted(request_of: Any) -> None:
    request = request_of(lambda: "done")
    request.interrupt()
    assert asyncio.run(request.fulfil()) == "done"
    request.interrupt()
    assert request.session.executor.submit(sum, range(1000)).result(5) == 499500
