"""Files of a text trainer's plain-Python loop: rollouts, journals, metrics, its state.

Tasks store stages in the stage store instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratchet.errors import CheckPointNotFoundError, StateError
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.language_models.usage import UsageMeter
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from trainers.base import MetricRecord
from trainers.text.state import STATE_FILE, State


class RunFiles:
    """The files of one run, in a folder that is created if missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_state(self) -> bool:
        """Whether a state was saved."""
        return (self.folder / "state" / STATE_FILE).is_file()

    def load_state(self) -> State:
        """Read the saved state."""
        return State.load(self.folder / "state")

    def save_state(self, state: State) -> None:
        """Write the state, replacing the previous one."""
        state.save(self.folder / "state")

    def check_parameters(self, parameters: dict[str, Any]) -> None:
        """Store the run's hyper-parameters, or check that they are unchanged.

        Raises StateError with the first dotted path that differs.
        """
        path = self.folder / "hyper_params.json"
        if not path.is_file():
            _write(path, parameters)
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        difference = _first_difference(before, json.loads(json.dumps(parameters)))
        if difference is not None:
            raise StateError(
                f"run {self.folder.name}: {difference}. A run resumes with the parameters it"
                " started with; choose another settings.run_id."
            )

    def journal(self, name: str) -> Path:
        """Return the path of a stage's journal of calls."""
        return self.folder / "journals" / f"{name}.jsonl"

    def transcripts(self, name: str) -> Path:
        """Return the folder for a stage's transcripts."""
        return self.folder / "transcripts" / name

    def save_rollouts(self, name: str, rollouts: NestedArrayDict) -> None:
        """Write a stage's rollouts, and delete its journal, which is no longer needed."""
        save_nested_array_dict(rollouts, self._rollouts(name))
        self.journal(name).unlink(missing_ok=True)

    def has_rollouts(self, name: str) -> bool:
        """Return whether a stage's rollouts were saved."""
        return self._rollouts(name).is_file()

    def load_rollouts(self, name: str) -> NestedArrayDict:
        """Read a stage's rollouts; CheckPointNotFoundError if they are missing."""
        if not self.has_rollouts(name):
            raise CheckPointNotFoundError(
                f"no rollouts of {name} in {self.folder}, but the state is after them. Set"
                " settings.run_id to the run of the state, or start a new run."
            )
        return load_nested_array_dict(self._rollouts(name))

    def save_usage(self, name: str, usage: UsageMeter) -> None:
        """Write a stage's usage."""
        _write(self.folder / "usage" / f"{name}.json", usage.to_table())

    def ledger(self, budget: float | None) -> Ledger:
        """Open the ledger of the run's charges.

        A new ledger starts with the costs of stages that finished before it existed.
        """
        ledger = Ledger(Budget(budget), self.folder / "ledger.jsonl")
        files = sorted((self.folder / "usage").glob("*.json"))
        tables = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        ledger.record_earlier_spending(sum(UsageMeter.from_table(table).cost for table in tables))
        return ledger

    def save_metrics(self, history: Sequence[MetricRecord]) -> None:
        """Write all metrics so far."""
        _write(self.folder / "metrics.json", [asdict(record) for record in history])

    def load_metrics(self) -> list[MetricRecord]:
        """Read the metrics; empty if there are none."""
        path = self.folder / "metrics.json"
        if not path.is_file():
            return []
        return [MetricRecord(**record) for record in json.loads(path.read_text(encoding="utf-8"))]

    def _rollouts(self, name: str) -> Path:
        return self.folder / "rollouts" / f"{name}.parquet"


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n", encoding="utf-8")
    os.replace(aside, path)


def _first_difference(before: object, now: object, path: str = "") -> str | None:
    """Return the first difference between two plain values; None if they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            inner = f"{path}.{name}" if path else name
            found = _first_difference(before.get(name), now.get(name), inner)
            if found is not None:
                return found
        return None
    return None if before == now else f"{path} was {before!r} and is {now!r} now"
