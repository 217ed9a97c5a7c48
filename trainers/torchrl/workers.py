"""Worker processes of collectors and environments, which end with their trainer.

TorchRL waits for workers without time limits, e.g. until they have received new weights. Therefore
its code runs in a separate thread while the stage's thread watches the workers.
"""

from __future__ import annotations

import contextvars
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TypeVar

from ratchet.errors import WorkerDiedError
from trainers.interruption import interrupt_thread, withdraw_interrupt

_POLL_SECONDS = 0.1
_SECONDS_TO_END = 5.0
_SECONDS_TO_RAISE = 2.0
"""Time in which the library can raise its own error after a worker has ended."""
_Result = TypeVar("_Result")


def run_with_workers(
    work: Callable[[], _Result], workers: Collection[BaseProcess]
) -> tuple[_Result, frozenset[BaseProcess]]:
    """Do work that may start workers; return its result and the workers that it leaves.

    Workers that the library ended are left out. Others that ended are returned, so that the next
    call names them. If the work fails, or is interrupted, or a worker dies, all workers are ended.
    Raises WorkerDiedError within seconds of a worker's death.
    """
    watched = _Watched(workers)
    try:
        with _starts_appended(watched.started):
            result = watched.run(work)
        return result, frozenset(each for each in watched.workers() if not _ended_by_library(each))
    except BaseException:
        end_processes(watched.workers())
        raise


def is_running(process: BaseProcess) -> bool:
    """Return whether a worker runs; the library closes the objects of those that it ended."""
    return not _is_closed(process) and process.is_alive()


def end_processes(processes: Iterable[BaseProcess]) -> None:
    """Terminate processes; kill those that do not end."""
    alive = [process for process in processes if is_running(process)]
    for end in (BaseProcess.terminate, BaseProcess.kill):
        for process in alive:
            end(process)
        deadline = time.monotonic() + _SECONDS_TO_END
        for process in alive:
            process.join(max(deadline - time.monotonic(), 0.0))
        alive = [process for process in alive if is_running(process)]


def _is_closed(process: BaseProcess) -> bool:
    return bool(getattr(process, "_closed", False))


def _ended_by_library(process: BaseProcess) -> bool:
    """Return whether a worker ended the way in which the library ends workers."""
    return _is_closed(process) or process.exitcode in (0, -signal.SIGTERM)


@contextmanager
def _starts_appended(processes: list[BaseProcess]) -> Iterator[None]:
    """Append the processes that start; `active_children` omits those that have ended since."""
    start = BaseProcess.start

    def start_and_append(process: BaseProcess) -> None:
        start(process)
        processes.append(process)

    BaseProcess.start = start_and_append  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


class _Watched:
    """Work in a separate thread, the workers from before, and those that it starts."""

    def __init__(self, workers: Collection[BaseProcess]) -> None:
        self._earlier = frozenset(workers)
        self.started: list[BaseProcess] = []

    def workers(self) -> frozenset[BaseProcess]:
        """Return the workers so far; stages run one at a time, so that others start none."""
        return self._earlier.union(tuple(self.started))

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Do the work; raise if a worker dies, or if this thread is interrupted."""
        outcome: Future[_Result] = Future()
        context = contextvars.copy_context()

        def compute() -> None:
            try:
                outcome.set_result(context.run(work))
            except BaseException as error:  # noqa: BLE001 -- raised by the waiting thread
                outcome.set_exception(error)

        thread = threading.Thread(target=compute, name="TorchRL", daemon=True)
        thread.start()
        try:
            while not wait([outcome], _POLL_SECONDS).done:
                dead = self._dead()
                if dead and not wait([outcome], _SECONDS_TO_RAISE).done:
                    raise _death_of(dead[0])
        except BaseException:
            end_processes(self.workers())
            assert thread.ident is not None
            interrupt_thread(thread.ident)
            thread.join(_SECONDS_TO_END)
            if thread.is_alive():  # it waits in the library
                withdraw_interrupt(thread.ident)
            raise
        error = outcome.exception()
        dead = [each for each in self._dead() if each in self._earlier or _is_killed(each)]
        if error is not None and dead:
            raise _death_of(dead[0]) from error
        return outcome.result()

    def _dead(self) -> list[BaseProcess]:
        """Return workers that ended, except those that the library started and ended itself.

        When one ends, the library terminates the others, which therefore come last.
        """
        ended = [each for each in self.workers() if not _is_closed(each) and not each.is_alive()]
        dead = [each for each in ended if each in self._earlier or not _ended_by_library(each)]
        return sorted(dead, key=_ended_by_library)


def _is_killed(process: BaseProcess) -> bool:
    code = process.exitcode
    return code is not None and code < 0 and code != -signal.SIGTERM


def _death_of(process: BaseProcess) -> WorkerDiedError:
    code = process.exitcode
    assert code is not None
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return WorkerDiedError(
        f"TorchRL's worker {process.name} (process {process.pid}) ended with {how}. Its error, if"
        " any, is above; without one, memory may have run out: lower collector.num_workers or"
        " training_env.num_workers. A retry starts new workers."
    )
