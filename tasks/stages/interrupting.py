"""End what a thread computes when nobody waits for it any more: after Ctrl-C, or a cancellation."""

from __future__ import annotations

import ctypes


class StageInterrupted(BaseException):
    """The run was interrupted or cancelled while a stage computed."""


def interrupt_thread(ident: int) -> None:
    """Have :class:`StageInterrupted` raised where a thread is now, between two steps of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), ctypes.py_object(StageInterrupted)
    )
