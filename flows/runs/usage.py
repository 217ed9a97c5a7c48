"""What a run has used of services: ``usage.json`` in the run folder, and what counts as spent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratchet.language_models.ledger import NOTHING
from ratchet.tracking.files import write_atomically
from tasks.text.files import USAGE_FILE, read_usage

if TYPE_CHECKING:
    from ratchet.language_models.ledger import Ledger
    from ratchet.language_models.usage import UsageMeter
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.decorator import StageOutcome

_SUMMED = ("calls", "prompt_tokens", "completion_tokens", "training_tokens", "cost")


@dataclass(frozen=True)
class _StageUsage:
    """What one stage of a run has used; ``paid`` by this run, or found in the store."""

    key: str
    about: Mapping[str, str | int | bool]
    usage: UsageMeter

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each agent and model."""
        return [{**row, **self.about} for row in self.usage.to_table()]


class RunUsage:
    """Keeps a run's ``usage.json`` up to what the flow has done.

    The rows say what the answers used that the results are made of. What the run was billed may be
    less, where others had paid, and more: answers were lost, and asked for again. Of those
    (``billed_unknown``) only the most is known.
    """

    def __init__(self, folder: RunFolder, store: StageStore, ledger: Ledger) -> None:
        self._folder = folder
        self._store = store
        self._ledger = ledger
        self._stages: dict[tuple[str, str, int], _StageUsage] = {}
        self._written = ""

    def add(self, outcome: StageOutcome) -> UsageMeter | None:
        """Take in a finished stage, and write the file if that has changed it.

        Returns what the stage has used; None if it asks no service.
        """
        usage = stage_usage(self._store, outcome.manifest)
        if usage is None:
            return None
        call, manifest = outcome.call, outcome.manifest
        about: dict[str, str | int | bool] = {
            "arm": call.arm,
            "stage": call.name,
            "iteration": call.iteration,
            "paid": manifest.run_id == self._folder.run_id,
        }
        place = (call.arm, call.name, call.iteration)
        self._stages[place] = _StageUsage(manifest.key, about, usage)
        self._write()
        return usage

    def close(self) -> None:
        """Write what was billed since the last stage, also for stages that were not finished."""
        if self._stages or self._ledger.billed != NOTHING:
            self._write()
        self._ledger.close()

    def _write(self) -> None:
        stages = [self._stages[place] for place in sorted(self._stages)]
        once = {stage.key: stage for stage in reversed(stages)}.values()  # arms share stages
        billed = self._ledger.billed
        content = {
            "billed_at_least": billed.at_least,
            "billed_at_most": billed.at_most,
            "billed_unknown": self._ledger.num_open,
            "by_agent": _sums(once, "agent"),
            "by_stage": _sums(once, "stage"),
            "by_model": _sums(once, "model"),
            "rows": [row for stage in stages for row in stage.rows()],
        }
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        if text != self._written:
            write_atomically(self._folder.usage_path, text)
            self._written = text


def spent_by_run(store: StageStore, folder: RunFolder) -> float:
    """Return what the stages have cost that a run made itself; what it found was paid before."""
    spent = 0.0
    for key in {record.key for record in folder.manifest.stages}:
        manifest = store.peek(key, lately=True)
        if manifest is not None and manifest.run_id == folder.run_id:
            usage = stage_usage(store, manifest)
            spent += usage.cost if usage is not None else 0.0
    return spent


def stage_usage(store: StageStore, manifest: Manifest) -> UsageMeter | None:
    """Read what a finished stage has used; None if it asks no service."""
    if USAGE_FILE not in manifest.files:
        return None
    return read_usage(store.open(manifest.key))


def _sums(stages: Iterable[_StageUsage], name: str) -> dict[str, dict[str, float]]:
    """Return sums of tokens and money by agent, stage or model; what has no price is free."""
    totals: dict[str, dict[str, float]] = {}
    for stage in stages:
        for row in stage.rows():
            total = totals.setdefault(str(row[name]), dict.fromkeys(_SUMMED, 0.0))
            for column in _SUMMED:
                total[column] += row[column] or 0
    return totals
