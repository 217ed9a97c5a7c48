"""``Runner``: executes requests concurrently, in local processes or remotely.

Requests and responses are plain data. :mod:`flows.runners.worker` executes a request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

Request = Mapping[str, Any]
Answer = dict[str, Any]


class Runner(Protocol):
    """Executes requests; open one with :func:`flows.runners.factory.open_runner`."""

    @property
    def slots(self) -> int:
        """Maximum number of concurrent requests; further ones wait."""

    async def submit(self, request: Request) -> Answer:
        """Execute a request and wait for its response; cancellation stops the execution.

        Raises WorkerDiedError if the worker was terminated externally; the request can be retried.
        """


def num_slots(settings: ExperimentSettings) -> int:
    """Return the number of concurrent requests on this machine."""
    return settings.max_parallel or max(1, (os.cpu_count() or 1) // settings.num_threads)


def worker_environment() -> dict[str, str]:
    """Return the variables that workers inherit: the Prefect server's URL and ``RATCHET_*``."""
    from prefect.settings import PREFECT_API_URL

    inherited = {name: value for name, value in os.environ.items() if name.startswith("RATCHET_")}
    url = PREFECT_API_URL.value()
    return {**inherited, **({"PREFECT_API_URL": str(url)} if url else {})}
