"""Work in processes of this machine, kept for the next request: imports take seconds."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.runners.base import Answer, Request, worker_environment
from trainers.companion import Companion, error_of

WORKER = "flows.runners.worker"


class Processes:
    """A few processes, each started when it is first needed.

    Parameters
    ----------
    slots
        How many there are at most.
    log_folder
        Where what they print is kept: ``worker-1.log`` and so on.
    """

    def __init__(self, slots: int, log_folder: Path) -> None:
        self.slots = slots
        self._log_folder = log_folder
        self._free = asyncio.Semaphore(slots)
        self._idle: list[Companion] = []
        self._numbers = itertools.count(1)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="waits for a process")

    async def submit(self, request: Request) -> Answer:
        """Have a request worked by an idle process; see :class:`flows.runners.base.Runner`."""
        async with self._free:
            process = self._idle.pop() if self._idle else self._start()
            try:
                answer = await asyncio.get_running_loop().run_in_executor(
                    self._threads, _worked, process, request
                )
            except BaseException:
                process.close()
                raise
            self._idle.append(process)
        if "error" in answer:
            raise error_of(answer)
        return answer

    def close(self) -> None:
        """Let the processes come to their end."""
        for process in self._idle:
            process.finish()
        self._threads.shutdown()

    def _start(self) -> Companion:
        log = self._log_folder / f"worker-{next(self._numbers)}.log"
        return Companion(WORKER, "a worker", log=log, environment=worker_environment())


def _worked(process: Companion, request: Request) -> Answer:
    process.ask(request)
    return process.answer()
