"""``Trials``: members of a sweep chosen by Optuna, one whenever a slot is free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flows.runs.result import ExperimentResult
from flows.sweeps.members import ResolvedSweep, SweepMember, has_failed
from flows.sweeps.study import MAX_ATTEMPTS, SweepStudy
from ratchet.errors import DataError, nearest
from ratchet.parameters.sweeps import OptunaSweep
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.sweep_folder import make_sweep_folder, write_sweep


class Trials:
    """Chooses members on demand and records their outcomes.

    Chosen members that have not ended come first, including failed ones.
    """

    def __init__(self, resolved: ResolvedSweep, spec: OptunaSweep) -> None:
        self._resolved, self._spec = resolved, spec
        self._is_exhausted = False
        folder = make_sweep_folder(resolved.settings.runs, resolved.sweep_id)
        self.study = SweepStudy.start(folder, spec)
        self.members = [resolved.member(trial.changes) for trial in self.study.trials]
        self._record()
        self._require_scores()

    def waiting(self) -> Iterator[SweepMember]:
        """Iterate over the members to run."""
        unfinished = [t.number for t in self.study.trials if t.state is None]
        yield from (self.members[number] for number in unfinished)
        while len(self.study.trials) < self._spec.num_trials:
            member = self._choose()
            if member is None:
                self._is_exhausted = True
                self._require_scores()
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
            self.study.finish_pruned(trial)
        else:
            self.study.finish(trial, self._last_value(member))
            self._require_scores()

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

    def _require_scores(self) -> None:
        """Raise DataError if all of the first members, which start the search, lack scores."""
        number = min(self._spec.num_startup_trials, self._spec.num_trials)
        if self._is_exhausted:
            number = min(number, len(self.study.trials))
        first = self.study.ended[:number]
        if len(first) < number or any(trial.state != "unscored" for trial in first):
            return
        member = self.members[first[-1].number]
        recorded = {
            f"{point.stage}/{name}" for point in _main_points(member) for name in point.values
        }
        others = f", nor have the {number - 1} that ended before it" if number > 1 else ""
        raise DataError(
            f"sweep.metric: {member.run_id} has not recorded {self._spec.metric!r}{others}."
            f"{nearest(self._spec.metric, recorded)} Correct sweep.metric and choose a different"
            " --name: finished stages are stored."
        )

    def _last_value(self, member: SweepMember) -> float | None:
        """Return the last value of the metric; None if the member has not recorded it."""
        stage, _, name = self._spec.metric.partition("/")
        matching = [
            point for point in _main_points(member) if point.stage == stage and name in point.values
        ]
        if not matching:
            return None
        return float(max(matching, key=lambda point: point.iteration).values[name])


def _main_points(member: SweepMember) -> list[MetricPoint]:
    points = RunFolder(member.experiment.run_path).read_metrics()
    return [point for point in points if point.arm == MAIN_ARM]
