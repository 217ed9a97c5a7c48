"""Interruption of a thread that computes a stage."""

from __future__ import annotations

import ctypes
import threading
import time


class StageInterrupted(BaseException):
    """The run was interrupted or cancelled while a stage computed."""


def interrupt_thread(ident: int) -> None:
    """Raise :class:`StageInterrupted` in a thread, between two of its Python instructions."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), ctypes.py_object(StageInterrupted)
    )


def withdraw_interrupt(ident: int) -> None:
    """Withdraw an interrupt from a thread that waits outside of Python, perhaps forever.

    While an exception is pending in any thread, profiled function calls of others never start in
    Python 3.11. The flag that causes this is reset when a thread, here this one, receives its own.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), None)
    try:
        interrupt_thread(threading.get_ident())
        while True:
            time.sleep(0)
    except StageInterrupted:
        return
