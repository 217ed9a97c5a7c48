"""``experiment_from_file``: what deployments run, an experiment file with overrides.

Does what ``ratchet run FILE a.b=c`` does, under a worker: a retried flow run goes on where the
failed one stopped.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow

from flows.experiment_flow import experiment
from flows.runs.identity import MAIN_ARM, absolute_settings, stable_run_id
from ratchet.experiment_files.loading import load_experiment


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
    loaded = await asyncio.to_thread(load_experiment, file, overrides or [])
    arms = {MAIN_ARM: loaded.hyper_params, **loaded.arms}
    settings = absolute_settings(loaded.settings)
    run_id = settings.run_id or stable_run_id(loaded.name, arms)
    result: dict[str, Any] = await experiment.fn(
        hyper_params=loaded.hyper_params.to_dict(),
        settings=settings.model_copy(update={"run_id": run_id}).to_dict(),
        arms={name: arm.to_dict() for name, arm in loaded.arms.items()},
        name=loaded.name,
    )
    return result
