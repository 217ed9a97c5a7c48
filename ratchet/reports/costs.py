"""Usage of model services: tokens and cost by arm, stage and agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ratchet.errors import DataError
from ratchet.tracking.run_folder import RunFolder

_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "training_tokens")


@dataclass(frozen=True)
class CostRow:
    """Usage of one agent in all stages of one kind; ``cost`` is None if a price is missing."""

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
        """The formatted cost."""
        return "no price" if self.cost is None else f"{self.cost:,.2f}"


@dataclass(frozen=True)
class Billed:
    """Bounds on a run's bill; they differ by ``unknown`` charges."""

    run: str
    at_least: float
    at_most: float
    unknown: int

    @property
    def text(self) -> str:
        """The amount, or both bounds with the reason."""
        if not self.unknown:
            return f"{self.at_most:,.2f}"
        return (
            f"at least {self.at_least:,.2f}, at most {self.at_most:,.2f}: {self.unknown:,} attempts"
            " have no answer, and may have been billed"
        )


def read_billed(folders: Sequence[RunFolder]) -> list[Billed]:
    """Read the billed amounts of runs; errors as :func:`read_costs`."""
    billed_runs = []
    for folder in folders:
        with _readable(folder):
            usage = _read(folder)
            if "billed_at_most" in usage:  # not recorded by earlier releases
                amounts = float(usage["billed_at_least"]), float(usage["billed_at_most"])
                billed_runs.append(Billed(folder.run_id, *amounts, int(usage["billed_unknown"])))
    return billed_runs


def read_costs(folders: Sequence[RunFolder]) -> list[CostRow]:
    """Read the usage of runs: a row for each arm, stage and agent."""
    rows: dict[tuple[str, str, str, str], CostRow] = {}
    for folder in folders:
        with _readable(folder):
            for entry in _read(folder).get("rows", ()):
                row_key = (folder.run_id, entry["arm"], entry["stage"], entry["agent"])
                rows[row_key] = _plus(rows.get(row_key, CostRow(*row_key)), entry)
    return list(rows.values())


def _read(folder: RunFolder) -> Mapping[str, Any]:
    """Read ``usage.json``; empty if the run has none."""
    path = folder.usage_path
    if not path.is_file():
        return {}
    usage: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {"rows": usage["rows"], **usage}


@contextmanager
def _readable(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder.usage_path}: {error!r}; expected what a run of chat models writes. Delete the"
            f" file; `ratchet resume {folder.run_id}` writes it again."
        ) from error


def _plus(row: CostRow, entry: dict[str, float | None]) -> CostRow:
    counts = {name: getattr(row, name) + int(entry[name] or 0) for name in _COUNTS}
    cost = None if row.cost is None or entry["cost"] is None else row.cost + entry["cost"]
    return CostRow(row.run, row.arm, row.stage, row.agent, **counts, cost=cost)
