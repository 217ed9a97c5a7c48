"""``SweepStudy``: journal of members chosen by Optuna, with their reported values and results.

The sweep and its members' processes append to a file in the sweep's folder. A resumed sweep reads
all earlier decisions from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from flows.sweeps.optuna_adapter import OptunaAdapter
from ratchet.errors import DataError, ParameterError, RunPrunedError
from ratchet.parameters.sweeps import NoPruner, OptunaSweep
from ratchet.tracking.files import JsonLines, locked
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.metrics import MetricPoint, plain_number
from ratchet.tracking.sweep_folder import STUDY_FILE

MAX_ATTEMPTS = 220
"""Attempts to sample a new member; if all are duplicates, the search space is exhausted."""

Ending: TypeAlias = Literal["completed", "pruned", "unscored"]
"""Outcome of a member; an unscored one has completed without recording the metric."""


@dataclass
class Trial:
    """One member chosen by Optuna.

    Attributes
    ----------
    changes
        Its changes by dotted path.
    reports
        Reported values by iteration.
    pruned_at
        The iteration after which the pruner decided to stop it.
    state, value
        Outcome and final value; None until it ends. An unscored member has no value, a pruned one
        the value that was reported when it was pruned. Older journals contain None for values
        that are not finite.
    """

    number: int
    changes: dict[str, Any]
    run_id: str
    reports: dict[int, float | None] = field(default_factory=dict)
    pruned_at: int | None = None
    state: Ending | None = None
    value: float | None = None


class SweepStudy:
    """Trials of a sweep, read from its journal; safe for concurrent processes.

    ``trials`` are in the order of their choice, ``ended`` in the order of their ends.
    """

    def __init__(self, folder: Path, spec: OptunaSweep) -> None:
        self.spec = spec
        self.trials: list[Trial] = []
        self.ended: list[Trial] = []
        self._journal = JsonLines(folder / STUDY_FILE)
        self._lock = folder / ".study.lock"
        self._offset = 0
        self._adapter: OptunaAdapter | None = None
        self._pending: list[dict[str, Any]] = []

    @classmethod
    def start(cls, folder: Path, spec: OptunaSweep) -> SweepStudy:
        """Start or resume a study.

        Raises ParameterError if its specification has changed, except the number of trials.
        """
        study = cls(folder, spec)
        described = described_study(spec)
        with locked(study._lock):
            lines, _ = study._journal.read()
            if not lines:
                study._journal.append([{"op": "study", **described}])
            else:
                started = described_study(_spec_of(folder, lines))
                changed = sorted(k for k, v in described.items() if started[k] != v)
                if changed:
                    raise ParameterError(
                        f"sweep {folder.name}: {', '.join(changed)} changed since its start, got"
                        f" {[described[k] for k in changed]}, expected"
                        f" {[started[k] for k in changed]}. Choose a different --name."
                    )
            study._catch_up()
        return study

    @classmethod
    def read(cls, folder: Path) -> SweepStudy:
        """Read the study of an existing sweep."""
        lines, _ = JsonLines(folder / STUDY_FILE).read()
        study = cls(folder, _spec_of(folder, lines))
        with locked(study._lock):
            study._catch_up()
        return study

    @property
    def prunes(self) -> bool:
        """Whether members must report intermediate values."""
        return not isinstance(self.spec.pruner, NoPruner)

    def suggest(self, attempt: int = 0) -> dict[str, Any]:
        """Return the next trial's changes; ``attempt`` counts rejected suggestions."""
        with locked(self._lock):
            self._catch_up()
            return self._optuna.suggest(len(self.trials), attempt)

    def add(self, changes: dict[str, Any], run_id: str) -> Trial:
        """Record a new trial."""
        with locked(self._lock):
            self._catch_up()
            number = len(self.trials)
            self._write({"op": "ask", "trial": number, "changes": changes, "run": run_id})
        return self.trials[number]

    def report(self, run_id: str, iteration: int, value: float) -> bool:
        """Record a member's value after an iteration; return whether to stop the member there.

        Decisions on repeated reports, and on members that have ended, do not change.
        """
        with locked(self._lock):
            self._catch_up()
            trial = next(each for each in reversed(self.trials) if each.run_id == run_id)
            if trial.state is not None:
                return False
            if trial.pruned_at is not None or iteration in trial.reports:
                return trial.pruned_at is not None and iteration >= trial.pruned_at
            prune = self._optuna.report(trial.number, iteration, value)
            line = {"op": "report", "trial": trial.number, "iteration": iteration}
            self._write({**line, "value": plain_number(value), "prune": prune})
            self._pending.pop()  # already reported to Optuna
            return prune

    def finish(self, trial: Trial, value: float | None) -> None:
        """Record that a member has completed with a value; None if it has not recorded one."""
        with locked(self._lock):
            self._catch_up()
            self._tell(trial, "unscored" if value is None else "completed", value)

    def finish_pruned(self, trial: Trial) -> None:
        """Record that a member was pruned, with the value that it reported then."""
        with locked(self._lock):
            self._catch_up()
            reported = None if trial.pruned_at is None else trial.reports[trial.pruned_at]
            self._tell(trial, "pruned", reported)

    def _tell(self, trial: Trial, state: Ending, value: float | None) -> None:
        if trial.state is None:
            plain = None if value is None else plain_number(value)
            self._write({"op": "tell", "trial": trial.number, "state": state, "value": plain})

    @property
    def _optuna(self) -> OptunaAdapter:
        """Optuna's study, updated with all lines of the journal; imports Optuna."""
        if self._adapter is None:
            self._adapter = OptunaAdapter(self.spec)
        for line in self._pending:
            if line["op"] == "ask":
                self._adapter.add(line["changes"])
            elif line["op"] == "report":
                self._adapter.report(line["trial"], line["iteration"], _value(line))
            else:
                pruned = line["state"] == "pruned"
                self._adapter.finish(line["trial"], _value(line), pruned=pruned)
        self._pending.clear()
        return self._adapter

    def _write(self, line: dict[str, Any]) -> None:
        self._journal.append([line])
        self._catch_up()

    def _catch_up(self) -> None:
        """Read new lines of the journal."""
        lines, self._offset = self._journal.read(self._offset)
        for line in lines:
            self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        if line["op"] == "study":
            return
        self._pending.append(line)
        if line["op"] == "ask":
            self.trials.append(Trial(line["trial"], line["changes"], line["run"]))
            return
        trial = self.trials[line["trial"]]
        if line["op"] == "report":
            trial.reports[line["iteration"]] = _value(line)
            trial.pruned_at = line["iteration"] if line["prune"] else trial.pruned_at
        else:
            trial.state, trial.value = line["state"], _value(line)
            self.ended.append(trial)


class MemberReports:
    """Reports the metrics of finished stages by iteration, and stops pruned members.

    The pruner decides on iterations, not stages, so that decisions depend neither on the
    partitioning into stages nor on cache hits. A member stops after the stage that contains the
    iteration.
    """

    def __init__(self, study: SweepStudy, run_id: str) -> None:
        self._study, self._run_id = study, run_id

    @classmethod
    def for_member(cls, folder: Path, run_id: str) -> MemberReports | None:
        """Return the reporter of a member of the sweep in a folder; None if no reports are due."""
        study = SweepStudy.read(folder)
        waiting = any(each.run_id == run_id and each.state is None for each in study.trials)
        return cls(study, run_id) if study.prunes and waiting else None

    def __call__(self, points: Sequence[MetricPoint]) -> None:
        """Report metrics of a stage.

        Raises RunPrunedError if the pruner stops the member.
        """
        stage, _, name = self._study.spec.metric.partition("/")
        for point in sorted(points, key=lambda each: each.iteration):
            if point.arm != MAIN_ARM or point.stage != stage or name not in point.values:
                continue
            value = float(point.values[name])
            if self._study.report(self._run_id, point.iteration, value):
                raise RunPrunedError(
                    f"pruned after iteration {point.iteration + 1}: {stage}/{name} was {value:.4g}."
                )


def _spec_of(folder: Path, lines: Sequence[Mapping[str, Any]]) -> OptunaSweep:
    """Return the specification in a journal's first line, with defaults that it lacks."""
    if not lines or lines[0].get("op") != "study":
        raise DataError(
            f"{folder / STUDY_FILE}: not a study's journal: the first line is no header."
        )
    described = {name: value for name, value in lines[0].items() if name != "op"}
    return OptunaSweep.model_validate({**described, "num_trials": 1})


def _value(line: dict[str, Any]) -> float | None:
    return None if line["value"] is None else float(line["value"])


def described_study(spec: OptunaSweep) -> dict[str, Any]:
    """Return the fields that must not change when a study is resumed: all except ``num_trials``."""
    return {name: value for name, value in spec.to_dict().items() if name != "num_trials"}
