"""Computations in threads are interrupted when their result is no longer awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.stages import driver
from tasks.stages.background import Interruptible
from tasks.stages.session import BaseSession
from trainers.interruption import StageInterrupted


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch, executor: ThreadPoolExecutor) -> Any:
    """Return a function that executes a stage without arguments, in one thread."""

    def make(work: Any, *, alone: bool = True) -> Any:
        monkeypatch.setattr(driver, "make_stage", lambda *_, **__: work())
        session = BaseSession(None, None, None, executor)  # type: ignore[arg-type]
        return driver._attempt(SimpleNamespace(alone=alone), None, session, False)  # type: ignore[arg-type]

    return make


async def _cancel(attempt: Any, begun: threading.Event) -> None:
    task = asyncio.ensure_future(attempt)
    assert await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_computing_stage_is_interrupted_and_cleans_up(
    attempt: Any, executor: ThreadPoolExecutor
) -> None:
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

    asyncio.run(_cancel(attempt(work), begun))
    assert ended.wait(240)
    assert [type(error) for error in raised] == [StageInterrupted]
    assert executor.submit(lambda: "next").result(5) == "next"


def test_a_stage_that_waits_for_paid_responses_is_not_interrupted(attempt: Any) -> None:
    begun, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(240)
        ended.set()

    asyncio.run(_cancel(attempt(work, alone=False), begun))
    go_on.set()
    assert ended.wait(240)


def test_work_interrupted_before_it_starts_does_not_start(executor: ThreadPoolExecutor) -> None:
    work = Interruptible(lambda: "done")
    work.interrupt()
    with pytest.raises(StageInterrupted):
        executor.submit(work.run).result(5)


def test_work_that_has_ended_is_not_interrupted(executor: ThreadPoolExecutor) -> None:
    work = Interruptible(lambda: "done")
    assert executor.submit(work.run).result(5) == "done"
    work.interrupt()
    assert executor.submit(sum, range(1000)).result(5) == 499500
