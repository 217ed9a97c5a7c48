"""Work on a Dask cluster that exists, or on one of this machine's own. Imports Dask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import dask.config
import distributed
from dask.typing import Key
from prefect_dask.task_runners import DaskTaskRunner

from flows.runners.base import Answer, Request, num_slots, worker_environment
from flows.runners.cluster_worker import work_beside
from ratchet.errors import WorkerDiedError
from trainers.companion import error_of

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_CONNECT_SECONDS = 10
_OWN_CLUSTER = {
    "distributed.scheduler.allowed-failures": 0,  # who asked tries again, and counts
}


class DaskRunner:
    """Works requests through a client of the cluster."""

    def __init__(self, client: distributed.Client, slots: int) -> None:
        self.slots = slots
        self._client = client
        self._free = asyncio.Semaphore(slots)

    async def submit(self, request: Request) -> Answer:
        """Have a request worked by a worker; see :class:`flows.runners.base.Runner`."""
        async with self._free:
            future = self._client.submit(
                work_on_worker, dict(request), worker_environment(), pure=False
            )
            try:
                answer = await _awaited(future)
            except asyncio.CancelledError:
                future.cancel()  # type: ignore[no-untyped-call]
                raise
        if "error" in answer:
            raise error_of(answer)
        return answer


async def _awaited(future: distributed.Future[Answer]) -> Answer:
    """Wait for Dask's future, which calls back from a thread of its own."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Answer] = loop.create_future()

    def settle(answer: Answer | None, error: BaseException | None) -> None:
        if found.done():
            return
        if answer is not None:
            found.set_result(answer)
        else:
            found.set_exception(error or WorkerDiedError("a worker of the cluster: it was lost."))

    def done(future: distributed.Future[Answer]) -> None:
        answer, error = None, None
        try:
            answer = future.result()
        except distributed.KilledWorker as died:
            error = WorkerDiedError(f"a worker of the cluster was ended from outside: {died}")
        except (Exception, asyncio.CancelledError) as other:  # noqa: BLE001 -- for who waits
            error = WorkerDiedError(f"the Dask cluster gave a request up: {other!r}")
        loop.call_soon_threadsafe(settle, answer, error)

    future.add_done_callback(done)  # type: ignore[no-untyped-call]
    return await found


def work_on_worker(request: Request, environment: Mapping[str, str]) -> Answer:
    """Work a request, on a worker, as long as its scheduler has it do so."""
    worker = distributed.get_worker()
    return work_beside(request, environment, partial(_is_wanted, worker, worker.get_current_task()))


def _is_wanted(worker: distributed.Worker, key: Key) -> bool:
    """Return whether a task goes on: who asked is there, and has not given it up."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")


@contextmanager
def open_dask(settings: ExperimentSettings, most: int) -> Iterator[DaskRunner]:
    """Start a cluster of this machine's own, or speak to that of ``settings.cluster_address``."""
    options: dict[str, Any] = {"client_kwargs": {"timeout": _CONNECT_SECONDS}}
    if settings.cluster_address is not None:
        options["address"] = settings.cluster_address
    else:
        options["cluster_kwargs"] = {
            "n_workers": min(num_slots(settings), most),
            "threads_per_worker": 1,
            "dashboard_address": None,
            "memory_limit": 0,  # what the work needs is none of its workers' business
        }
    logging.getLogger("distributed").setLevel(logging.ERROR)  # of each worker that comes and goes
    with dask.config.set(_OWN_CLUSTER), DaskTaskRunner(**options) as opened:
        workers = opened.client.nthreads()
        slots = sum(workers.values()) or 1
        yield DaskRunner(opened.client, min(slots, settings.max_parallel or slots))
