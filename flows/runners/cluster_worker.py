"""What a worker of a cluster does with a request: it has a process of its own work it.

So the work begins in a clean process whose environment is set before anything is imported, signals
reach it, and it can be ended in the middle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from flows.runners.base import Answer, Request
from flows.runners.processes import WORKER
from trainers.companion import Companion

_LOOK_SECONDS = 1.0
_kept = threading.local()
"""Each thread's process, kept for the next request, and its environment."""


def work_beside(
    request: Request, environment: Mapping[str, str], is_wanted: Callable[[], bool] | None = None
) -> Answer:
    """Work a request in a process; the answer may be an error, as plain data.

    The process is ended as soon as ``is_wanted`` says that nobody waits for the answer any more.
    """
    process = _process(environment)
    answered = threading.Event()
    if is_wanted is not None:
        watch = threading.Thread(
            target=_end_unwanted, args=(process, answered, is_wanted), daemon=True
        )
        watch.start()
    try:
        process.ask(request)
        return process.answer()
    except BaseException:
        _kept.process = None
        process.close()
        raise
    finally:
        answered.set()


def _end_unwanted(
    process: Companion, answered: threading.Event, is_wanted: Callable[[], bool]
) -> None:
    while not answered.wait(_LOOK_SECONDS):
        if not is_wanted():
            if not answered.is_set():  # else it may work the next request already
                process.close()
            return


def _process(environment: Mapping[str, str]) -> Companion:
    """Return this thread's process; a new one where it was closed, or has another environment."""
    process: Companion | None = getattr(_kept, "process", None)
    if process is not None and (process.is_closed or _kept.environment != environment):
        process.finish()
        process = None
    if process is None:
        process = Companion(WORKER, "a worker of the cluster", environment=environment)
        _kept.process, _kept.environment = process, environment
    return process
