"""Worker processes, reused for later requests because imports take seconds.

``Processes`` executes requests in processes of this machine. A worker of a cluster also executes a
request in a subprocess: it starts in a clean process whose environment is set before any import,
receives signals, and can be terminated at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.runners.base import Answer, Request, worker_environment
from trainers.subprocess_worker import SubprocessWorker, error_of

WORKER = "flows.runners.worker"
_POLL_SECONDS = 1.0
_cached = threading.local()
"""Each thread's process for the next request, and the environment of the process."""


class Processes:
    """A pool of processes, each started at its first use.

    Parameters
    ----------
    slots
        Maximum number of processes.
    log_folder
        Folder of their logs, ``worker-1.log`` and so on.
    """

    def __init__(self, slots: int, log_folder: Path) -> None:
        self.slots = slots
        self._log_folder = log_folder
        self._free = asyncio.Semaphore(slots)
        self._idle: list[SubprocessWorker] = []
        self._numbers = itertools.count(1)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="waits for a process")

    async def submit(self, request: Request) -> Answer:
        """Execute a request in an idle process; see :class:`flows.runners.base.Runner`."""
        async with self._free:
            process = self._idle.pop() if self._idle else self._start()
            try:
                answer = await asyncio.get_running_loop().run_in_executor(
                    self._threads, process.execute, request
                )
            except BaseException:
                process.close()
                raise
            self._idle.append(process)
        if "error" in answer:
            raise error_of(answer)
        return answer

    def close(self) -> None:
        """Let the processes finish and exit."""
        for process in self._idle:
            process.finish()
        self._threads.shutdown()

    def _start(self) -> SubprocessWorker:
        log = self._log_folder / f"worker-{next(self._numbers)}.log"
        return SubprocessWorker(WORKER, "a worker", log=log, environment=worker_environment())


def execute_in_subprocess(
    request: Request,
    environment: Mapping[str, str],
    should_continue: Callable[[], bool] | None = None,
) -> Answer:
    """Execute a request in this thread's subprocess; the response may be an error, as plain data.

    Terminates the subprocess as soon as ``should_continue`` returns False.
    """
    process = _process(environment)
    finished = threading.Event()
    if should_continue is not None:
        watch = threading.Thread(
            target=_terminate_if_cancelled, args=(process, finished, should_continue), daemon=True
        )
        watch.start()
    try:
        return process.execute(request)
    except BaseException:
        _cached.process = None
        process.close()
        raise
    finally:
        finished.set()


def _terminate_if_cancelled(
    process: SubprocessWorker, finished: threading.Event, should_continue: Callable[[], bool]
) -> None:
    while not finished.wait(_POLL_SECONDS):
        if not should_continue():
            if not finished.is_set():  # otherwise it may already execute the next request
                process.close()
            return


def _process(environment: Mapping[str, str]) -> SubprocessWorker:
    """Return this thread's process; a new one if it is closed or the environment differs."""
    process: SubprocessWorker | None = getattr(_cached, "process", None)
    if process is not None and (process.is_closed or _cached.environment != environment):
        process.finish()
        process = None
    if process is None:
        process = SubprocessWorker(WORKER, "a worker of the cluster", environment=environment)
        _cached.process, _cached.environment = process, environment
    return process
