"""The MLflow run of a sweep, the parent of its members' runs.

The first mirrored member creates it from ``sweep.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import RunNotFoundError
from ratchet.store.local import hash_file
from ratchet.tracking.environment import author
from ratchet.tracking.files import locked, standalone_copy
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mirrors.payload import (
    ARM_TAG,
    KIND_TAG,
    MAX_PARAM_CHARS,
    RUN_TAG,
    metric_key,
)
from ratchet.tracking.run_folder import SWEEP_FILE, RunFolder
from ratchet.tracking.run_lock import runners
from ratchet.tracking.sweep_folder import (
    PAGE_FILE,
    STUDY_FILE,
    SweepRecord,
    read_sweep,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FILE_TAG = "ratchet.sweep_file"
"""The digest of the record that was sent last."""


@dataclass(frozen=True)
class BestMember:
    """The best member of those ``num_scored`` that have a score, and its last metrics."""

    run_id: str
    label: str
    num_scored: int
    metrics: Mapping[str, float]


FindRun = Callable[[str], "Run | None"]
"""Finds the MLflow run of a run by its id."""


def sync_sweep(
    client: MlflowClient,
    experiment_id: str,
    runs: Path,
    sweep_id: str,
    find: FindRun,
    best: BestMember | None = None,
) -> str | None:
    """Create or update a sweep's MLflow run; return its id.

    ``best`` is the sweep's result, if available. None if no such sweep is recorded.
    """
    if not (runs / sweep_id / SWEEP_FILE).exists():
        return None
    record = read_sweep(runs, sweep_id)
    if record is None:
        return None
    with locked(runs / sweep_id / ".mlflow.lock"):
        run = find(sweep_id) or _create(client, experiment_id, record)
        _describe(client, run, runs / sweep_id / SWEEP_FILE, record)
        status = _status(runs, record)
        if run.info.status != status and status == "RUNNING":
            client.update_run(run.info.run_id, status=status)
        elif run.info.status != status:
            client.set_terminated(run.info.run_id, status)
        if best is not None:
            _tell_best(client, run, best)
    return str(run.info.run_id)


def _create(client: MlflowClient, experiment_id: str, record: SweepRecord) -> Run:
    tags = {
        RUN_TAG: record.sweep_id,
        ARM_TAG: MAIN_ARM,
        KIND_TAG: "sweep",
        "mlflow.source.name": " ".join(record.command) or "sweep",
        "mlflow.note.content": (
            f"A sweep of Ratchet; its members are the child runs.\n\n- its page:"
            f" `{record.sweep_id}/{PAGE_FILE}` among the runs; comparison of its members:"
            f" `ratchet compare {record.sweep_id}`"
        ),
    }
    if who := author():
        tags["mlflow.user"] = who
    return client.create_run(
        experiment_id,
        start_time=int(record.created * 1000),
        tags=tags,
        run_name=record.sweep_id,
    )


def _describe(client: MlflowClient, run: Run, file: Path, record: SweepRecord) -> None:
    """Log missing parameters, and the file if it is missing or has changed."""
    from mlflow.entities import Param

    params = {metric_key(path): text for path, text in _described(record).items()}
    missing = params.keys() - run.data.params.keys()
    if missing:
        new = [Param(name, params[name]) for name in sorted(missing)]
        client.log_batch(run.info.run_id, params=new)
    digest = hash_file(file)
    if run.data.tags.get(FILE_TAG) != digest:
        client.log_artifact(run.info.run_id, str(file))
        client.set_tag(run.info.run_id, FILE_TAG, digest)


def keep_files(client: MlflowClient, mlflow_run_id: str, folder: Path) -> None:
    """Upload a sweep's page and journal."""
    for name in (STUDY_FILE, PAGE_FILE):
        if (folder / name).exists():
            with standalone_copy(folder / name) as file:
                client.log_artifact(mlflow_run_id, str(file))


def _described(record: SweepRecord) -> dict[str, str]:
    """Return the varied values by dotted path, and the strategy's parameters, as text."""
    spec = dict(record.spec) or {"parameters": record.grid}
    varies = {**spec.pop("parameters", {}), **spec.pop("for_each", {})}
    spec_params = {f"sweep.{name}": value for name, value in spec.items()}
    return {
        path: (value if isinstance(value, str) else json.dumps(value))[:MAX_PARAM_CHARS]
        for path, value in {**spec_params, **varies}.items()
    }


def _tell_best(client: MlflowClient, run: Run, best: BestMember) -> None:
    """Log the metrics of the best member, each once for each number of members."""
    from mlflow.entities import Metric, RunTag

    known = {
        key: {each.step for each in client.get_metric_history(run.info.run_id, key)}
        for key in best.metrics
        if key in run.data.metrics
    }
    now = int(time.time() * 1000)
    new = [
        Metric(key, value, now, best.num_scored)
        for key, value in best.metrics.items()
        if best.num_scored not in known.get(key, ())
    ]
    tags = [RunTag("ratchet.best_run", best.run_id), RunTag("ratchet.best_changes", best.label)]
    client.log_batch(run.info.run_id, metrics=new, tags=tags)


def _status(runs: Path, record: SweepRecord) -> str:
    """Return a sweep's status, which is running until all members have ended."""
    if runners(runs / record.sweep_id):
        return "RUNNING"
    statuses = []
    for member in record.members:
        try:
            statuses.append(RunFolder(runs / member.run_id).manifest.status)
        except RunNotFoundError:
            return "RUNNING"
    if "running" in statuses:
        return "RUNNING"
    if "failed" in statuses:
        return "FAILED"
    return "FINISHED" if set(statuses) <= {"completed", "pruned"} else "KILLED"
