"""What happened to jobs, page by page: events and checkpoints, newest first."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Literal, TypeVar

from ratchet.language_models.service.api.errors import not_found
from ratchet.language_models.service.api.schemas.fine_tuning import CheckpointObject, JobEventObject
from ratchet.language_models.service.api.schemas.objects import Identified, Page
from ratchet.language_models.service.database import Database, Value
from ratchet.language_models.service.jobs.objects import to_checkpoint_object, to_event_object
from ratchet.language_models.service.training.job_folder import VALID_LOSS

Item = TypeVar("Item", bound=Identified)


class JobHistory:
    """Reads events and checkpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def events(self, job_id: str, *, after: str | None, limit: int) -> Page[JobEventObject]:
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
        return Page(data=[show(row) for row in rows], has_more=has_more)
