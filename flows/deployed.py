"""``experiment_from_file``: what deployments run, an experiment file with overrides.

Does what ``ratchet run FILE a.b=c`` does, under a worker: a retried flow run goes on where the
failed one stopped.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow

from flows.experiment_flow import play_experiment
from flows.runs.resolving import resolve_file


@flow(name="experiment-from-file", flow_run_name="{file}", persist_result=False)
async def experiment_from_file(file: str, overrides: list[str] | None = None) -> dict[str, Any]:
    """Run an experiment file from wherever it stands.

    Parameters
    ----------
    file
        A YAML file, relative to the folder in which the deployment was registered.
    overrides
        ``a.b=value``, on top of the file.
    """
    return await play_experiment(await asyncio.to_thread(resolve_file, file, overrides or []))
