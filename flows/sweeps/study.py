"""``SweepStudy``: what was asked, reported and told of the members that Optuna chooses.

A journal in the sweep's folder, which the sweep and the processes of its members write. What it
says is what holds: a sweep that goes on asks for nothing that was answered once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from flows.sweeps.suggesting import OptunaTrials
from ratchet.errors import DataError, ParameterError
from ratchet.parameters.sweeps import NoPruner, OptunaSweep
from ratchet.tracking.files import JsonLines, locked
from ratchet.tracking.sweep_folder import STUDY_FILE

MAX_ATTEMPTS = 20
"""So often is a member asked for that there is already, before there are taken to be no more."""

Ending: TypeAlias = Literal["completed", "pruned"]


@dataclass
class Trial:
    """One member that Optuna has chosen.

    Attributes
    ----------
    changes
        What it changes, by dotted path.
    reports
        Its values by iteration, so far.
    pruned_at
        The iteration after which it was decided to prune it.
    state, value
        How it ended, and what it came to; None while it has not ended, or failed.
    """

    number: int
    changes: dict[str, Any]
    run_id: str
    reports: dict[int, float | None] = field(default_factory=dict)
    pruned_at: int | None = None
    state: Ending | None = None
    value: float | None = None


class SweepStudy:
    """The trials of a sweep, read from its journal as far as it goes; safe among processes."""

    def __init__(self, folder: Path, spec: OptunaSweep) -> None:
        self.spec = spec
        self.trials: list[Trial] = []
        self._journal = JsonLines(folder / STUDY_FILE)
        self._lock = folder / ".study.lock"
        self._offset = 0
        self._known: OptunaTrials | None = None
        self._untold: list[dict[str, Any]] = []

    @classmethod
    def begin(cls, folder: Path, spec: OptunaSweep) -> SweepStudy:
        """Begin a study, or go on with it.

        Raises
        ------
        ParameterError
            If it was begun with another specification; only the number of trials may change.
        """
        study = cls(folder, spec)
        described = described_study(spec)
        with locked(study._lock):
            lines, _ = study._journal.read()
            if not lines:
                study._journal.append([{"op": "study", **described}])
            elif lines[0] != {"op": "study", **described}:
                changed = sorted(k for k, v in described.items() if lines[0].get(k) != v)
                raise ParameterError(
                    f"sweep {folder.name}: {', '.join(changed)} changed since it was begun, got"
                    f" {[described[k] for k in changed]}, expected"
                    f" {[lines[0].get(k) for k in changed]}. Give this sweep another --name."
                )
            study._catch_up()
        return study

    @classmethod
    def read(cls, folder: Path) -> SweepStudy:
        """Read the study of a sweep that was begun."""
        journal = JsonLines(folder / STUDY_FILE)
        lines, _ = journal.read()
        if not lines or lines[0].get("op") != "study":
            raise DataError(f"{journal.path}: not the journal of a study: no first line says so.")
        described = {name: value for name, value in lines[0].items() if name != "op"}
        study = cls(folder, OptunaSweep.model_validate({**described, "num_trials": 1}))
        with locked(study._lock):
            study._catch_up()
        return study

    @property
    def prunes(self) -> bool:
        """Whether members are to report at all."""
        return not isinstance(self.spec.pruner, NoPruner)

    def suggest(self, attempt: int = 0) -> dict[str, Any]:
        """Return what the next trial would change; ``attempt`` counts those turned down."""
        with locked(self._lock):
            self._catch_up()
            return self._optuna.suggest(len(self.trials), attempt)

    def add(self, changes: dict[str, Any], run_id: str) -> Trial:
        """Note a trial that is to run."""
        with locked(self._lock):
            self._catch_up()
            number = len(self.trials)
            self._write({"op": "ask", "trial": number, "changes": changes, "run": run_id})
        return self.trials[number]

    def report(self, run_id: str, iteration: int, value: float | None) -> bool:
        """Note a member's value after an iteration; return whether it is to stop there.

        Of what was reported once, and of members that have ended, the decision stays.
        """
        with locked(self._lock):
            self._catch_up()
            trial = next(each for each in reversed(self.trials) if each.run_id == run_id)
            if trial.state is not None:
                return False
            if trial.pruned_at is not None or iteration in trial.reports:
                return trial.pruned_at is not None and iteration >= trial.pruned_at
            prune = self._optuna.report(trial.number, iteration, value)
            line = {"op": "report", "trial": trial.number, "iteration": iteration, "value": value}
            self._write({**line, "prune": prune})
            self._untold.pop()  # Optuna knows of it
            return prune

    def tell(self, trial: Trial, state: Ending, value: float | None) -> None:
        """Note how a member has ended."""
        with locked(self._lock):
            self._catch_up()
            if trial.state is None:
                line = {"op": "tell", "trial": trial.number, "state": state, "value": value}
                self._write(line)

    @property
    def _optuna(self) -> OptunaTrials:
        """What Optuna makes of all lines so far; imported where it is asked."""
        if self._known is None:
            self._known = OptunaTrials(self.spec)
        for line in self._untold:
            if line["op"] == "ask":
                self._known.add(line["changes"])
            elif line["op"] == "report":
                self._known.report(line["trial"], line["iteration"], line["value"])
            else:
                self._known.tell(line["trial"], line["value"], pruned=line["state"] == "pruned")
        self._untold.clear()
        return self._known

    def _write(self, line: dict[str, Any]) -> None:
        self._journal.append([line])
        self._catch_up()

    def _catch_up(self) -> None:
        """Take in what the journal says beyond what is known."""
        lines, self._offset = self._journal.read(self._offset)
        for line in lines:
            self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if line["op"] == "study":
            return
        self._untold.append(line)
        if line["op"] == "ask":
            self.trials.append(Trial(line["trial"], line["changes"], line["run"]))
            return
        trial = self.trials[line["trial"]]
        if line["op"] == "report":
            trial.reports[line["iteration"]] = line["value"]
            trial.pruned_at = line["iteration"] if line["prune"] else trial.pruned_at
        else:
            trial.state, trial.value = line["state"], line["value"]


def described_study(spec: OptunaSweep) -> dict[str, Any]:
    """Return what must stay as it is when a study goes on: all but how many trials it has."""
    return {name: value for name, value in spec.to_dict().items() if name != "num_trials"}
