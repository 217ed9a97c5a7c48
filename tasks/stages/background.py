"""Computations in threads that can be interrupted; some outlast the stage that starts them.

At most one of the latter runs in a process. It may seed the libraries' global generators, as stages
do: the next stage of any arm waits for it.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from trainers.interruption import StageInterrupted, interrupt_thread

_POLL_SECONDS = 0.1
_Result = TypeVar("_Result")
_EXECUTOR = ThreadPoolExecutor(1, thread_name_prefix="background")
_latest: Future[Any] | None = None
"""The computation that may outlast its stage, until a stage has waited for it."""


class Interruptible(Generic[_Result]):
    """A computation in a thread that another thread can interrupt."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._thread: int | None = None
        self._is_interrupted = False
        self._changes = threading.Lock()

    def run(self) -> _Result:
        """Compute in the current thread, unless interrupted before."""
        with self._changes:
            if self._is_interrupted:
                raise StageInterrupted
            self._thread = threading.get_ident()
        try:
            return self._work()
        finally:
            with self._changes:  # the thread may be reused
                self._thread = None

    def interrupt(self) -> None:
        """Interrupt the computation if it is running; otherwise prevent it from starting."""
        with self._changes:
            self._is_interrupted = True
            if self._thread is not None:
                interrupt_thread(self._thread)


class BackgroundWork(Generic[_Result]):
    """A computation that may outlast the stage that starts it.

    The stage must use neither the global generators nor torch's settings from then on.
    """

    def __init__(self, work: Callable[[], _Result]) -> None:
        global _latest
        self._work = Interruptible(work)
        job = functools.partial(contextvars.copy_context().run, self._work.run)
        _latest = self._future = _EXECUTOR.submit(job)

    def result(self) -> _Result:
        """Wait for the result; raise the computation's error."""
        return self._future.result()

    def end(self) -> None:
        """Interrupt the computation, and wait for its end."""
        self._work.interrupt()
        wait([self._future])


def wait_for_background() -> None:
    """Wait until no computation outlasts its stage; for the only stage that computes.

    With timeouts, between which the thread can be interrupted.
    """
    global _latest
    while _latest is not None and not wait([_latest], _POLL_SECONDS).done:
        pass
    _latest = None
