"""Outcomes of jobs: a registered model, or a recorded error."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from ratchet.errors import DataError
from ratchet.service.database import Database
from ratchet.service.files import FileStore
from ratchet.service.jobs.jobs import add_event
from ratchet.service.models import ModelRegistry
from ratchet.service.training.job_folder import (
    MODEL_FOLDER,
    HyperParameterValue,
    TrainingCheckpoint,
    TrainingResult,
    read_training_events,
)

_MAX_MESSAGE = 4000


def record_success(
    database: Database,
    files: FileStore,
    models: ModelRegistry,
    row: sqlite3.Row,
    folder: Path,
    result: TrainingResult,
    *,
    defaults: Mapping[str, HyperParameterValue],
) -> None:
    """Move the trained model and its checkpoints into place and mark the job as succeeded.

    The job is marked last, in one transaction with its models: if killed before, it runs again. The
    model's name is derived from the job, its base model and the service's ``defaults``.
    """
    if not (folder / MODEL_FOLDER).is_dir():
        raise DataError(f"The trainer has not written the folder {MODEL_FOLDER!r}.")
    job_id, root = row["id"], models.get(row["model"]).root
    # the base model's folder is named by its version: other weights give another name
    made_of = [
        row["identity"],
        models.base_of(row["model"]).folder.name,
        *(f"{name}={value}" for name, value in sorted(defaults.items())),
    ]
    identity = hashlib.sha256(":".join(made_of).encode()).hexdigest()
    name = _free_name(database, f"ft:{root}:{row['suffix'] or 'ratchet'}:{identity[:12]}")
    new_models = [(name, job_id, folder / MODEL_FOLDER)]
    for checkpoint in result.checkpoints:
        step = f"step-{checkpoint.step}"
        new_models.append((f"{name}:ckpt-{step}", f"{job_id}-{step}", folder / checkpoint.folder))
    for _, target, source in new_models:
        models.put(source, target)
    result_file = files.add_result_file("step_metrics.csv", io.BytesIO(_metrics_csv(folder)))
    now = int(time.time())
    with database.transaction() as connection:
        changed = connection.execute(
            "UPDATE jobs SET status = 'succeeded', finished_at = ?, fine_tuned_model = ?,"
            " trained_tokens = ?, hyperparameters = ?, result_file = ?"
            " WHERE id = ? AND status = 'running'",
            (now, name, result.trained_tokens, _used(row, result), result_file.id, job_id),
        ).rowcount
        for model_id, target, _ in new_models if changed else ():
            connection.execute(
                "INSERT INTO models VALUES (?, ?, ?, ?, ?)", (model_id, target, now, root, job_id)
            )
        for checkpoint in (*result.checkpoints, _last(result)) if changed else ():
            _insert_checkpoint(connection, job_id, name, checkpoint, now)
        if changed:
            add_event(connection, job_id, f"Trained the model {name}.")
    if not changed:  # cancelled or paused in the meantime
        files.delete(result_file.id, reason="its job was cancelled or paused")
        for _, target, _ in new_models:
            shutil.rmtree(models.folder / target, ignore_errors=True)


def record_failure(database: Database, job_id: str, message: str) -> None:
    """Mark a running job as failed, with the reason."""
    error = {"code": "training_failed", "message": message[:_MAX_MESSAGE], "param": None}
    with database.transaction() as connection:
        changed = connection.execute(
            "UPDATE jobs SET status = 'failed', finished_at = ?, error = ?"
            " WHERE id = ? AND status = 'running'",
            (int(time.time()), json.dumps(error), job_id),
        ).rowcount
        if changed:
            add_event(connection, job_id, message[:_MAX_MESSAGE], level="error")


def _free_name(database: Database, name: str) -> str:
    """Return an unused name for a repeated job; both models have equal weights."""
    query = "SELECT 1 FROM models WHERE id = ? OR substr(id, 1, ?) = ?"  # its checkpoints' too
    number, candidate = 1, name
    while database.row(query, (candidate, len(f"{candidate}:"), f"{candidate}:")) is not None:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _used(row: sqlite3.Row, result: TrainingResult) -> str:
    return json.dumps({**json.loads(row["hyperparameters"]), **result.hyperparameters})


def _last(result: TrainingResult) -> TrainingCheckpoint:
    return TrainingCheckpoint(step=result.steps, folder="", train_loss=result.train_loss)


def _insert_checkpoint(
    connection: sqlite3.Connection, job_id: str, name: str, checkpoint: TrainingCheckpoint, now: int
) -> None:
    model_id = f"{name}:ckpt-step-{checkpoint.step}" if checkpoint.folder else name
    connection.execute(
        "INSERT INTO checkpoints (id, job_id, created_at, model_id, step, train_loss)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            *(f"ftckpt-{secrets.token_hex(12)}", job_id, now, model_id),
            *(checkpoint.step, checkpoint.train_loss),
        ),
    )


def _metrics_csv(folder: Path) -> bytes:
    events, _ = read_training_events(folder)
    names = sorted({name for event in events for name in event.metrics})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "epoch", "train_loss", *names])
    for event in events:
        more = [event.metrics.get(name, "") for name in names]  # not every step has every metric
        writer.writerow([event.step, event.epoch, event.train_loss, *more])
    return text.getvalue().encode()
