"""The MLflow run that stands for a sweep: the parent of its members' runs.

Made by whichever member is mirrored first, from ``sweep.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import RunNotFoundError
from ratchet.tracking.content import (
    ARM_TAG,
    KIND_TAG,
    MAX_PARAM_CHARS,
    RUN_TAG,
    file_digest,
    metric_key,
)
from ratchet.tracking.files import locked
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.sweep_folder import FILE_NAME, SweepRecord, read_sweep

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FILE_TAG = "ratchet.sweep_file"
"""The digest of the record that was sent last."""
FindRun = Callable[[str], "Run | None"]
"""Finds the MLflow run of a run by its id."""


def sync_sweep(
    client: MlflowClient, experiment_id: str, runs: Path, sweep_id: str, find: FindRun
) -> str | None:
    """Return the id of a sweep's MLflow run, made if there is none, and brought up to date.

    None if there is no record of such a sweep.
    """
    if not (runs / sweep_id / FILE_NAME).exists():
        return None
    record = read_sweep(runs, sweep_id)
    if record is None:
        return None
    with locked(runs / sweep_id / ".mlflow.lock"):
        run = find(sweep_id) or _create(client, experiment_id, record)
        _describe(client, run, runs / sweep_id / FILE_NAME, record)
        status = _status(runs, record)
        if run.info.status != status and status == "RUNNING":
            client.update_run(run.info.run_id, status=status)
        elif run.info.status != status:
            client.set_terminated(run.info.run_id, status)
    return str(run.info.run_id)


def _create(client: MlflowClient, experiment_id: str, record: SweepRecord) -> Run:
    tags = {
        RUN_TAG: record.sweep_id,
        ARM_TAG: MAIN_ARM,
        KIND_TAG: "sweep",
        "mlflow.source.name": " ".join(record.command) or "sweep",
    }
    return client.create_run(
        experiment_id,
        start_time=int(record.created * 1000),
        tags=tags,
        run_name=record.sweep_id,
    )


def _describe(client: MlflowClient, run: Run, file: Path, record: SweepRecord) -> None:
    """Tell parameters that are not there yet, and the file if it isn't or has changed."""
    from mlflow.entities import Param

    params = {metric_key(path): json.dumps(values) for path, values in record.grid.items()}
    missing = params.keys() - run.data.params.keys()
    if missing:
        new = [Param(name, params[name][:MAX_PARAM_CHARS]) for name in sorted(missing)]
        client.log_batch(run.info.run_id, params=new)
    digest = file_digest(file)
    if run.data.tags.get(FILE_TAG) != digest:
        client.log_artifact(run.info.run_id, str(file))
        client.set_tag(run.info.run_id, FILE_TAG, digest)


def _status(runs: Path, record: SweepRecord) -> str:
    """Return a sweep's status: it goes on until each member has ended."""
    found = []
    for member in record.members:
        try:
            found.append(RunFolder(runs / member.run_id).manifest.status)
        except RunNotFoundError:
            return "RUNNING"
    if "running" in found:
        return "RUNNING"
    if "failed" in found:
        return "FAILED"
    return "FINISHED" if set(found) <= {"completed"} else "KILLED"
