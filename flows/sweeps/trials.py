"""``Trials``: members of a sweep chosen by Optuna, one whenever a slot is free."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from flows.runs.result import ExperimentResult
from flows.sweeps.members import ResolvedSweep, SweepMember, has_failed
from flows.sweeps.study import MAX_ATTEMPTS, SweepStudy
from ratchet.errors import DataError, nearest
from ratchet.parameters.sweeps import OptunaSweep
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.sweep_folder import make_sweep_folder, write_sweep


class Trials:
    """Chooses members on demand and records their outcomes.

    Chosen members that have not ended come first, including failed ones.
    """

    def __init__(self, resolved: ResolvedSweep, spec: OptunaSweep) -> None:
        self._resolved, self._spec = resolved, spec
        folder = make_sweep_folder(resolved.settings.runs, resolved.sweep_id)
        self.study = SweepStudy.start(folder, spec)
        self.members = [resolved.member(trial.changes) for trial in self.study.trials]
        self._record()

    def waiting(self) -> Iterator[SweepMember]:
        """Iterate over the members to run."""
        unfinished = [t.number for t in self.study.trials if t.state is None]
        yield from (self.members[number] for number in unfinished)
        while len(self.study.trials) < self._spec.num_trials:
            member = self._choose()
            if member is None:
                return
            yield member

    def failed(self) -> Iterator[SweepMember]:
        """Iterate over the failed members."""
        unfinished = [t.number for t in self.study.trials if t.state is None]
        return filter(has_failed, (self.members[number] for number in unfinished))

    def earlier_results(self) -> dict[str, dict[str, Any]]:
        """Return the results of members that had already ended, by run id; they do not run again.

        Excludes members whose run folder was deleted.
        """
        results = {}
        for member, trial in zip(self.members, self.study.trials, strict=True):
            path = member.experiment.run_path
            if trial.state is not None and (path / "manifest.json").exists():
                results[trial.run_id] = ExperimentResult.from_folder(RunFolder(path)).to_dict()
        return results

    def record_outcome(self, member: SweepMember) -> None:
        """Record the outcome of a completed or pruned member."""
        trial = next(each for each in self.study.trials if each.run_id == member.run_id)
        if RunFolder(member.experiment.run_path).status == "pruned":
            value = None if trial.pruned_at is None else trial.reports[trial.pruned_at]
            self.study.finish(trial, "pruned", value)
        else:
            self.study.finish(trial, "completed", self._last_value(member))

    def _choose(self) -> SweepMember | None:
        """Choose a new member; None if all suggestions exist already."""
        existing = {trial.run_id for trial in self.study.trials}
        for attempt in range(MAX_ATTEMPTS):
            member = self._resolved.member(self.study.suggest(attempt))
            if member.run_id not in existing:
                self.study.add(member.changes, member.run_id)
                self.members.append(member)
                self._record()
                return member
        return None

    def _record(self) -> None:
        write_sweep(self._resolved.settings.runs, self._resolved.record(self.members))

    def _last_value(self, member: SweepMember) -> float | None:
        """Return the last value of the metric; None if it is not finite."""
        stage, _, name = self._spec.metric.partition("/")
        points = [
            point
            for point in RunFolder(member.experiment.run_path).read_metrics()
            if point.arm == MAIN_ARM
        ]
        matching = [point for point in points if point.stage == stage and name in point.values]
        if not matching:
            recorded = {f"{point.stage}/{each}" for point in points for each in point.values}
            raise DataError(
                f"sweep.metric: {member.run_id} has not recorded {self._spec.metric!r}."
                f"{nearest(self._spec.metric, recorded)}"
            )
        value = float(max(matching, key=lambda point: point.iteration).values[name])
        return value if math.isfinite(value) else None
