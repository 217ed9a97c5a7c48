"""The experiment as a synchronous flow, for ``prefect flow-run retry ID --entrypoint …``.

That command does not await flows, so that asynchronous ones never run. Workers do await them, and
don't need this module.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prefect import flow

from flows.experiment_flow import experiment as asynchronous_experiment
from flows.process.heartbeats import END_HOOKS


@flow(name="experiment", persist_result=False, validate_parameters=False, **END_HOOKS)
def experiment(
    hyper_params: dict[str, Any],
    settings: dict[str, Any] | None = None,
    arms: dict[str, dict[str, Any]] | None = None,
    name: str = "experiment",
    keep: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Run or resume an experiment.

    Parameters are those of :func:`flows.experiment_flow.experiment`.
    """

    async def run() -> dict[str, Any]:
        result: dict[str, Any] = await asynchronous_experiment.fn(
            hyper_params, settings, arms, name, keep, force
        )
        return result

    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:  # an event loop is running in this one
        return thread.submit(context.run, lambda: asyncio.run(run())).result()
