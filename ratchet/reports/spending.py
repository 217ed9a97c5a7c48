"""What a run has used of model services, for the report: tokens and money by agent and model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.errors import DataError
from ratchet.tracking.run_folder import RunFolder

_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "training_tokens")


@dataclass(frozen=True)
class SpendingRow:
    """What one agent has used of one model in all stages of one kind.

    ``cost`` is None where some of it has no price.
    """

    run: str
    arm: str
    stage: str
    agent: str
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    training_tokens: int = 0
    cost: float | None = 0.0

    @property
    def price(self) -> str:
        """The cost as people read it."""
        return "no price" if self.cost is None else f"{self.cost:,.2f}"


def read_spending(folders: Sequence[RunFolder]) -> list[SpendingRow]:
    """Read what runs have used: a row for each arm, stage and agent.

    Raises
    ------
    DataError
        If a file is damaged.
    """
    rows: dict[tuple[str, str, str, str], SpendingRow] = {}
    for folder in folders:
        path = folder.usage_path
        if not path.is_file():
            continue
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))["rows"]
            for entry in entries:
                place = (folder.run_id, entry["arm"], entry["stage"], entry["agent"])
                rows[place] = _plus(rows.get(place, SpendingRow(*place)), entry)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: {error!r}; expected what a run of chat models writes. Delete the file;"
                f" `ratchet resume {folder.run_id}` writes it again."
            ) from error
    return list(rows.values())


def _plus(row: SpendingRow, entry: dict[str, float | None]) -> SpendingRow:
    counts = {name: getattr(row, name) + int(entry[name] or 0) for name in _COUNTS}
    cost = None if row.cost is None or entry["cost"] is None else row.cost + entry["cost"]
    return SpendingRow(row.run, row.arm, row.stage, row.agent, **counts, cost=cost)
