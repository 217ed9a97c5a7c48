"""Runner on an existing Ray cluster or a local one. Imports Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from prefect_ray.task_runners import RayTaskRunner  # type: ignore[import-untyped]

from flows.runners.base import Answer, Request, num_slots, worker_environment
from flows.runners.processes import execute_in_subprocess
from ratchet.errors import WorkerDiedError
from trainers.subprocess_worker import error_of

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings


class RayRunner:
    """Executes requests as tasks of the cluster, each on one core."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = asyncio.Semaphore(slots)
        # the caller retries and counts attempts
        self._execute = ray.remote(num_cpus=1, max_retries=0)(execute_in_subprocess)

    async def submit(self, request: Request) -> Answer:
        """Execute a request on a worker; see :class:`flows.runners.base.Runner`."""
        async with self._free:
            reference = self._execute.remote(dict(request), worker_environment())
            try:
                answer: Answer = await asyncio.wrap_future(reference.future())
            except asyncio.CancelledError:
                ray.cancel(reference, force=True)
                raise
            except ray.exceptions.RayError as error:
                raise WorkerDiedError(
                    f"a worker of the Ray cluster was terminated externally: {error}"
                ) from error
        if "error" in answer:
            raise error_of(answer)
        return answer


@contextmanager
def open_ray(settings: ExperimentSettings, max_requests: int) -> Iterator[RayRunner]:
    """Start a local cluster, or connect to ``settings.cluster_address``."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if settings.cluster_address is None:
        options |= {"num_cpus": min(num_slots(settings), max_requests), "include_dashboard": False}
    with RayTaskRunner(settings.cluster_address, options):
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        slots = int(resources.get("CPU", 1)) or 1
        yield RayRunner(min(slots, settings.max_parallel or slots))
