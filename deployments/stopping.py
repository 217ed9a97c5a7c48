"""Stop processes with all their children, gently first. Only processes that we have started."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psutil

from flows.process.stack_file import ProcessMark


def stop_marks(marks: Sequence[ProcessMark], seconds: float = 10.0) -> None:
    """Send SIGTERM, wait, then SIGKILL to what is left of the processes and their children.

    Those that have ended, or whose number is another's now, are left alone.
    """
    parents = [psutil.Process(mark.pid) for mark in marks if mark.is_alive()]
    family = list(parents)
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += parent.children(recursive=True)
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent.terminate()
    psutil.wait_procs(parents, timeout=seconds)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=5.0)
