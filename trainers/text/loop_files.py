"""Files of a text trainer's ``train()`` next to its checkpoint: rollouts, calls and charges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from ratchet.errors import CheckPointNotFoundError, StateError
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict


@dataclass(frozen=True)
class LoopFiles:
    """The rollouts of finished stages, the finished calls of the current one, and the ledger."""

    folder: Path
    ledger: Ledger

    @classmethod
    @contextmanager
    def open(cls, checkpoint: Path | None, budget: float | None) -> Iterator[Self]:
        """Open the files of a checkpoint; without one, temporary files."""
        with ExitStack() as stack:
            if checkpoint is None:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ratchet-text-")))
            else:
                folder = checkpoint.with_name(f"{checkpoint.name}@files")
            ledger = Ledger(Budget(budget), folder / "ledger.jsonl")
            yield cls(folder, stack.enter_context(closing(ledger)))

    def journal(self, name: str) -> Path:
        """Return the path of the journal of a stage's calls."""
        return self.folder / "journals" / f"{name}.jsonl"

    def remove(self, *folders: str) -> None:
        """Remove ``"journals"`` or other folders of files."""
        for name in folders:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def transcripts(self, name: str) -> Path:
        """Return the folder for readable transcripts of rollouts."""
        return self.folder / "transcripts" / name

    def save(self, name: str, rollouts: NestedArrayDict) -> None:
        """Write rollouts."""
        save_nested_array_dict(rollouts, self._path(name))

    def has(self, name: str) -> bool:
        """Return whether rollouts were saved."""
        return self._path(name).is_file()

    def load(self, name: str) -> NestedArrayDict:
        """Read rollouts; CheckPointNotFoundError if they are missing."""
        if not self.has(name):
            raise CheckPointNotFoundError(
                f"no rollouts {name!r} in {self.folder}, but the state is after them. Set"
                " settings.run_id to the run of the state, or start a new run."
            )
        return load_nested_array_dict(self._path(name))

    def _path(self, name: str) -> Path:
        return self.folder / "rollouts" / f"{name}.parquet"


def refuse_changed_parameters(checkpoint: Path, parameters: Mapping[str, Any]) -> None:
    """Raise StateError if a checkpoint's parameters differ, with the first dotted path."""
    if not checkpoint.is_file():
        return
    before = json.loads(checkpoint.read_text(encoding="utf-8"))
    difference = _first_difference(before, json.loads(json.dumps(parameters)))
    if difference is not None:
        raise StateError(
            f"run {checkpoint.parent.name}: {difference}. A run resumes with the parameters it"
            " started with; choose another settings.run_id."
        )


def _first_difference(before: object, now: object, path: str = "") -> str | None:
    """Return the first difference between two plain values; None if they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        pairs = ((before.get(name), now.get(name), f"{path}.{name}") for name in names)
        return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)
    return None if before == now else f"{path[1:]} was {before!r} and is {now!r} now"
