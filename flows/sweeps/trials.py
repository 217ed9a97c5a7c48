"""``Trials``: the members of a sweep that Optuna chooses, one when there is a place for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from flows.runs.result import ExperimentResult
from flows.sweeps.members import ResolvedSweep, SweepMember, has_failed
from flows.sweeps.study import MAX_ATTEMPTS, SweepStudy, Trial
from ratchet.errors import DataError, nearest
from ratchet.parameters.sweeps import OptunaSweep
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.sweep_folder import make_sweep_folder, write_sweep


class Trials:
    """Asks for members as they are drawn, and tells what they came to.

    Members that were asked for and have not ended come first, those that failed among them.
    """

    def __init__(self, resolved: ResolvedSweep, spec: OptunaSweep) -> None:
        self._resolved, self._spec = resolved, spec
        folder = make_sweep_folder(resolved.settings.runs, resolved.sweep_id)
        self.study = SweepStudy.begin(folder, spec)
        self.members = [resolved.member(trial.changes) for trial in self.study.trials]
        self._record()

    def waiting(self) -> Iterator[SweepMember]:
        """Go through the members that are to run."""
        left = [t.number for t in self.study.trials if t.state is None]
        yield from (self.members[number] for number in left)
        while len(self.study.trials) < self._spec.num_trials:
            member = self._ask()
            if member is None:
                return
            yield member

    def failed(self) -> Iterator[SweepMember]:
        """Go through the members that have failed."""
        left = [t.number for t in self.study.trials if t.state is None]
        return filter(has_failed, (self.members[number] for number in left))

    def earlier_results(self) -> dict[str, dict[str, Any]]:
        """Return what members came to that had ended before, by run; they are not run again.

        Of one whose run was deleted the study alone knows.
        """
        found = {}
        for member, trial in zip(self.members, self.study.trials, strict=True):
            path = member.experiment.run_path
            if trial.state is not None and (path / "manifest.json").exists():
                found[trial.run_id] = ExperimentResult.from_folder(RunFolder(path)).to_dict()
        return found

    def ended(self, member: SweepMember) -> None:
        """Tell what a member came to that has not failed."""
        trial = self._trial(member)
        if RunFolder(member.experiment.run_path).status == "pruned":
            value = None if trial.pruned_at is None else trial.reports[trial.pruned_at]
            self.study.tell(trial, "pruned", value)
        else:
            self.study.tell(trial, "completed", self._last_value(member))

    def _ask(self) -> SweepMember | None:
        """Ask for a member that there was not; None if there seems to be none."""
        known = {trial.run_id for trial in self.study.trials}
        for attempt in range(MAX_ATTEMPTS):
            member = self._resolved.member(self.study.suggest(attempt))
            if member.run_id not in known:
                self.study.add(member.changes, member.run_id)
                self.members.append(member)
                self._record()
                return member
        return None

    def _record(self) -> None:
        write_sweep(self._resolved.settings.runs, self._resolved.record(self.members))

    def _trial(self, member: SweepMember) -> Trial:
        return next(each for each in self.study.trials if each.run_id == member.run_id)

    def _last_value(self, member: SweepMember) -> float | None:
        """Return the last value of the metric; None if it is no finite number."""
        stage, _, name = self._spec.metric.partition("/")
        points = [
            point
            for point in RunFolder(member.experiment.run_path).read_metrics()
            if point.arm == MAIN_ARM
        ]
        own = [point for point in points if point.stage == stage and name in point.values]
        if not own:
            recorded = {f"{point.stage}/{each}" for point in points for each in point.values}
            raise DataError(
                f"sweep.metric: {member.run_id} has not recorded {self._spec.metric!r}."
                f"{nearest(self._spec.metric, recorded)}"
            )
        value = float(max(own, key=lambda point: point.iteration).values[name])
        return value if math.isfinite(value) else None
