"""End what a thread computes when nobody waits for it any more: after Ctrl-C, or a cancellation."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class StageInterrupted(BaseException):
    """The run was interrupted or cancelled while a stage computed."""


class Interruptible(Generic[_Result]):
    """Work for a thread that can be ended from another one, between two steps of Python."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __call__(self) -> _Result:
        """Do the work."""
        with self._lock:
            self._thread = threading.get_ident()
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread = None

    def interrupt(self) -> None:
        """Have :class:`StageInterrupted` raised where the work is now, if it has begun."""
        with self._lock:
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(StageInterrupted)
                )
