"""Jobs, their events and checkpoints in the API's format."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Literal

from openai.types.fine_tuning import FineTuningJobEvent
from openai.types.fine_tuning.fine_tuning_job import Error, Hyperparameters, Method

from ratchet.service.api.errors import not_found
from ratchet.service.api.schemas.fine_tuning import (
    CheckpointMetrics,
    CheckpointObject,
    JobObject,
)
from ratchet.service.api.schemas.objects import Item, Page
from ratchet.service.database import Database, Value
from ratchet.service.training.job_folder import VALID_LOSS


def to_job_object(row: sqlite3.Row) -> JobObject:
    """Convert a job's row."""
    values = json.loads(row["hyperparameters"])
    metadata = None if row["metadata"] is None else json.loads(row["metadata"])
    error = None if row["error"] is None else Error(**json.loads(row["error"]))
    method = {"type": row["method"], row["method"]: {"hyperparameters": values}}
    common_values = {name: value for name, value in values.items() if name != "beta"}
    return JobObject(
        object="fine_tuning.job",
        id=row["id"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        model=row["model"],
        fine_tuned_model=row["fine_tuned_model"],
        organization_id="ratchet",
        status=row["status"],
        error=error,
        training_file=row["training_file"],
        validation_file=row["validation_file"],
        result_files=[] if row["result_file"] is None else [row["result_file"]],
        hyperparameters=Hyperparameters.model_validate(common_values),
        method=Method.model_validate(method),
        seed=row["seed"],
        trained_tokens=row["trained_tokens"],
        estimated_finish=None,
        integrations=[],
        metadata=metadata,
    )


def to_event_object(row: sqlite3.Row) -> FineTuningJobEvent:
    """Convert an event's row."""
    return FineTuningJobEvent(
        object="fine_tuning.job.event",
        id=row["id"],
        created_at=row["created_at"],
        level=row["level"],
        message=row["message"],
        type=row["type"],
        data=json.loads(row["data"], parse_int=float),
    )


def to_checkpoint_object(row: sqlite3.Row, valid_loss: float | None) -> CheckpointObject:
    """Convert a checkpoint's row, with the loss on the validation file after its step."""
    metrics = CheckpointMetrics(step=row["step"], train_loss=row["train_loss"])
    if valid_loss is not None:  # always over the complete validation file
        metrics.valid_loss = metrics.full_valid_loss = valid_loss
    return CheckpointObject(
        object="fine_tuning.job.checkpoint",
        id=row["id"],
        created_at=row["created_at"],
        fine_tuned_model_checkpoint=row["model_id"],
        fine_tuning_job_id=row["job_id"],
        metrics=metrics,
        step_number=row["step"],
    )


class JobHistory:
    """Reads events and checkpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def events(self, job_id: str, *, after: str | None, limit: int) -> Page[FineTuningJobEvent]:
        """List a job's events."""
        return self._page("events", job_id, after, limit, to_event_object)

    def checkpoints(self, job_id: str, *, after: str | None, limit: int) -> Page[CheckpointObject]:
        """List the models that were saved while a job ran."""
        return self._page("checkpoints", job_id, after, limit, self._checkpoint)

    def _checkpoint(self, row: sqlite3.Row) -> CheckpointObject:
        statement = (
            "SELECT data FROM events WHERE job_id = ? AND type = 'metrics'"
            " AND json_extract(data, '$.step') = ? ORDER BY sequence DESC LIMIT 1"
        )
        event = self._database.row(statement, (row["job_id"], row["step"]))
        data = {} if event is None else json.loads(event["data"])
        return to_checkpoint_object(row, data.get(VALID_LOSS))

    def _page(
        self,
        table: Literal["events", "checkpoints"],
        job_id: str,
        after: str | None,
        limit: int,
        show: Callable[[sqlite3.Row], Item],
    ) -> Page[Item]:
        where, values = ["job_id = ?"], list[Value]([job_id])
        if after is not None:
            last = self._database.row(f"SELECT sequence FROM {table} WHERE id = ?", (after,))
            if last is None:
                raise not_found(table.removesuffix("s"), after, param="after")
            where.append("sequence < ?")
            values.append(last["sequence"])
        rows, has_more = self._database.page(table, where, values, limit)
        return Page(object="list", data=[show(row) for row in rows], has_more=has_more)
