"""Runner on an existing Dask cluster or a local one. Imports Dask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import distributed
from dask.typing import Key
from prefect_dask.task_runners import DaskTaskRunner

from flows.runners.base import Answer, Request, num_slots, worker_environment
from flows.runners.processes import execute_in_subprocess
from ratchet.errors import WorkerDiedError
from trainers.subprocess_worker import died, error_of

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_CONNECT_SECONDS = 10


class DaskRunner:
    """Executes requests through a client of the cluster."""

    def __init__(self, client: distributed.Client, slots: int) -> None:
        self.slots = slots
        self._client = client
        self._free = asyncio.Semaphore(slots)

    async def submit(self, request: Request) -> Answer:
        """Execute a request on a worker; see :class:`flows.runners.base.Runner`."""
        async with self._free:
            future = self._client.submit(
                execute_on_worker, dict(request), worker_environment(), pure=False
            )
            try:
                answer = await _wait_for(future)
            except asyncio.CancelledError:
                future.cancel()  # type: ignore[no-untyped-call]
                raise
            finally:
                await asyncio.to_thread(_started(future.key, self._client).clear)
        if "error" in answer:
            raise error_of(answer)
        return answer


def _started(key: Key, client: distributed.Client | None = None) -> distributed.Event:
    """Return the scheduler's flag that a worker has started a task."""
    return distributed.Event(f"ratchet {key}", client)  # type: ignore[no-untyped-call]


async def _wait_for(future: distributed.Future[Answer]) -> Answer:
    """Wait for Dask's future, whose callback runs in a separate thread."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Answer] = loop.create_future()

    def settle(answer: Answer | None, error: BaseException | None) -> None:
        if result.done():
            return
        if answer is not None:
            result.set_result(answer)
        else:
            result.set_exception(error or WorkerDiedError("a worker of the cluster was lost."))

    def done(future: distributed.Future[Answer]) -> None:
        answer, error = None, None
        try:
            answer = future.result()
        except distributed.KilledWorker as died:
            error = WorkerDiedError(f"a worker of the cluster was terminated externally: {died}")
        except (Exception, asyncio.CancelledError) as other:  # noqa: BLE001 -- for the caller
            error = WorkerDiedError(f"the Dask cluster gave up a request: {other!r}")
        loop.call_soon_threadsafe(settle, answer, error)

    future.add_done_callback(done)  # type: ignore[no-untyped-call]
    return await result


def execute_on_worker(request: Request, environment: Mapping[str, str]) -> Answer:
    """Execute a request on a worker until the scheduler cancels the task.

    The scheduler repeats a task whose worker was lost. The repetition is an error, since the caller
    counts and reports attempts.
    """
    worker = distributed.get_worker()
    key = worker.get_current_task()
    started = _started(key)
    if started.is_set():  # type: ignore[no-untyped-call]
        return died("a worker of the Dask cluster was terminated externally.")
    started.set()  # type: ignore[no-untyped-call]
    should_continue = partial(_should_continue, worker, key)
    return execute_in_subprocess(request, environment, should_continue)


def _should_continue(worker: distributed.Worker, key: Key) -> bool:
    """Return whether a task is still executing: its client is connected and has not cancelled."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")


@contextmanager
def open_dask(settings: ExperimentSettings, max_requests: int) -> Iterator[DaskRunner]:
    """Start a local cluster, or connect to ``settings.cluster_address``."""
    options: dict[str, Any] = {"client_kwargs": {"timeout": _CONNECT_SECONDS}}
    if settings.cluster_address is not None:
        options["address"] = settings.cluster_address
    else:
        options["cluster_kwargs"] = {
            "n_workers": min(num_slots(settings), max_requests),
            "threads_per_worker": 1,
            "dashboard_address": None,
            "memory_limit": 0,  # requests run in subprocesses, outside the workers' accounting
        }
    logging.getLogger("distributed").setLevel(logging.ERROR)  # hides each worker's start and end
    with DaskTaskRunner(**options) as opened:
        workers = opened.client.nthreads()
        slots = sum(workers.values()) or 1
        yield DaskRunner(opened.client, min(slots, settings.max_parallel or slots))
