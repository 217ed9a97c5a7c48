"""``Runner``: works requests at once, in this machine's processes or elsewhere.

A request is plain data, as is its answer: nothing of a run is handed over but what it is made of.
What is done with one is said by :mod:`flows.runners.worker`.
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
    """Works requests; open one with :func:`flows.runners.choosing.open_runner`."""

    @property
    def slots(self) -> int:
        """How many requests are worked at once; further ones wait."""

    async def submit(self, request: Request) -> Answer:
        """Have a request worked, and wait for the answer; who is cancelled meanwhile ends the work.

        Raises
        ------
        RatchetError, CompanionError
            What the request failed with.
        WorkerDiedError
            If whoever worked it was ended from outside. Another one may be asked.
        """


def num_slots(settings: ExperimentSettings) -> int:
    """Return how many requests this machine works at once."""
    return settings.max_parallel or max(1, (os.cpu_count() or 1) // settings.num_threads)


def worker_environment() -> dict[str, str]:
    """Return what workers' environments have of this one: which Prefect server, what is tried."""
    from prefect.settings import PREFECT_API_URL

    own = {name: value for name, value in os.environ.items() if name.startswith("RATCHET_")}
    url = PREFECT_API_URL.value()
    return {**own, **({"PREFECT_API_URL": str(url)} if url else {})}
