"""What a thread computes ends where nobody waits for it any more."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.stages.interrupting import Interruptible, StageInterrupted


def test_work_that_runs_is_ended_and_cleans_up():
    begun, cleaned = threading.Event(), []

    def work() -> None:
        try:
            begun.set()
            while True:
                time.sleep(0.001)
        finally:
            cleaned.append(True)

    interruptible = Interruptible(work)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(interruptible)
        assert begun.wait(5)
        interruptible.interrupt()
        with pytest.raises(StageInterrupted):
            future.result(5)
        assert cleaned == [True]
        assert executor.submit(lambda: "next").result(5) == "next"


def test_work_that_has_not_begun_or_has_ended_is_left_alone():
    interruptible = Interruptible(lambda: "done")
    interruptible.interrupt()
    assert interruptible() == "done"
    interruptible.interrupt()
    assert sum(range(1000)) == 499500
