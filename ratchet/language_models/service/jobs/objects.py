"""Rows of the database as the API shows them: jobs, their events and checkpoints."""

from __future__ import annotations

import json
import sqlite3

from ratchet.language_models.service.api.schemas.fine_tuning import (
    CheckpointMetrics,
    CheckpointObject,
    DpoHyperParametersObject,
    DpoMethodContent,
    HyperParametersObject,
    JobError,
    JobEventObject,
    JobObject,
    MethodObject,
    SupervisedMethodContent,
)


def to_job_object(row: sqlite3.Row) -> JobObject:
    """Show a job."""
    values = json.loads(row["hyperparameters"])
    metadata = None if row["metadata"] is None else json.loads(row["metadata"])
    error = None if row["error"] is None else JobError(**json.loads(row["error"]))
    return JobObject(
        id=row["id"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        model=row["model"],
        fine_tuned_model=row["fine_tuned_model"],
        status=row["status"],
        error=error,
        training_file=row["training_file"],
        validation_file=row["validation_file"],
        result_files=[] if row["result_file"] is None else [row["result_file"]],
        hyperparameters=HyperParametersObject.model_validate(values),
        method=_method(row["method"], values),
        seed=row["seed"],
        trained_tokens=row["trained_tokens"],
        metadata=metadata,
    )


def to_event_object(row: sqlite3.Row) -> JobEventObject:
    """Show an event."""
    return JobEventObject(
        id=row["id"],
        created_at=row["created_at"],
        level=row["level"],
        message=row["message"],
        type=row["type"],
        data=json.loads(row["data"]),
    )


def to_checkpoint_object(row: sqlite3.Row, valid_loss: float | None) -> CheckpointObject:
    """Show a checkpoint, and the loss on the validation file after its step."""
    metrics = CheckpointMetrics(
        step=row["step"],
        train_loss=row["train_loss"],
        valid_loss=valid_loss,
        full_valid_loss=valid_loss,
    )
    return CheckpointObject(
        id=row["id"],
        created_at=row["created_at"],
        fine_tuned_model_checkpoint=row["model_id"],
        fine_tuning_job_id=row["job_id"],
        metrics=metrics,
        step_number=row["step"],
    )


def _method(kind: str, values: dict[str, float | int | str]) -> MethodObject:
    if kind == "dpo":
        content = DpoMethodContent(hyperparameters=DpoHyperParametersObject.model_validate(values))
        return MethodObject(type="dpo", dpo=content)
    plain = SupervisedMethodContent(hyperparameters=HyperParametersObject.model_validate(values))
    return MethodObject(type="supervised", supervised=plain)
