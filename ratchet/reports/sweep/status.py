"""Status of a sweep: each member's state, score and progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ratchet.errors import DataError, nearest
from ratchet.reports.comparison.learning import SCORES
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.labels import number
from ratchet.reports.tables import show
from ratchet.statistics.importance import varying_paths
from ratchet.statistics.results import (
    accuracy,
    agents_by_return,
    evaluator_metrics,
    has_decisions,
    mean_metric,
    mean_return,
)
from ratchet.tracking.manifest import MAIN_ARM, RunStatus
from ratchet.tracking.metrics import MetricPoint
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import runners
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord

TEST = "test"
MemberState = RunStatus | Literal["not started"]
_ORDER: tuple[MemberState, ...] = (
    "completed",
    "running",
    "interrupted",
    "pruned",
    "failed",
    "cancelled",
    "not started",
)


@dataclass(frozen=True)
class MemberStatus:
    """Status of one member.

    Attributes
    ----------
    changes
        Its parameters by dotted path.
    score, arm_scores
        Its first arm's score in the sweep's measure, None while not available, and those of all
        arms that have one. A score that is not finite is the worst one.
    iteration, latest
        Last recorded training iteration, and the training measure at it.
    """

    run_id: str
    changes: Mapping[str, Any]
    status: MemberState
    score: float | None = None
    iteration: int | None = None
    latest: float | None = None
    error: str | None = None
    arm_scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its parameters, as on the command line."""
        return " ".join(f"{path}={show(value)}" for path, value in self.changes.items())


@dataclass(frozen=True)
class SweepStatus:
    """Status of a sweep.

    ``measure`` names the score and ``training`` the metric of ``latest``; ``is_running`` is set
    while a process runs the sweep or a member; ``minimize`` if lower is better. ``codes`` are the
    commits of the members, followed by "+" for changes or untracked files, and ``data`` the
    digests of each data set's content.
    """

    record: SweepRecord
    members: Sequence[MemberStatus]
    measure: str
    training: str
    is_running: bool = False
    minimize: bool = False
    codes: Sequence[str] = ()
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """The parameters that differ between members."""
        return varying_paths([member.changes for member in self.members])

    @property
    def scored(self) -> list[MemberStatus]:
        """Members with a finite score, the best first; pruned ones last.

        Early scores of pruned members are not comparable with final scores.
        """
        finite = [m for m in self.members if m.score is not None and math.isfinite(m.score)]
        sign = 1 if self.minimize else -1
        return sorted(finite, key=lambda m: (m.status == "pruned", sign * (m.score or 0.0)))

    @property
    def diverged(self) -> list[MemberStatus]:
        """Members whose score is not finite."""
        return [m for m in self.members if m.score is not None and not math.isfinite(m.score)]

    @property
    def score_notes(self) -> list[str]:
        """Name the members whose score is not finite, and completed ones without a score."""
        missing = [m for m in self.members if m.status == "completed" and m.score is None]
        notes = [
            (self.diverged, f"{self.measure} is not finite, which counts as the worst score"),
            (missing, f"{self.measure} was not recorded, so that they have no score"),
        ]
        return [
            f"{text}: {', '.join(f'{m.label or m.run_id} ({m.run_id})' for m in members)}."
            for members, text in notes
            if members
        ]

    @property
    def is_share(self) -> bool:
        """Whether scores are shares, displayed in percent."""
        return self.measure.rpartition(".")[2].rpartition("/")[2].endswith("accuracy")

    @property
    def counts(self) -> str:
        """Number of members by state, as text."""
        num_by_status = Counter(member.status for member in self.members)
        return ", ".join(
            f"{num_by_status[status]} {status}" for status in _ORDER if num_by_status[status]
        )

    def shown_score(self, value: float | None) -> str:
        """Format a score; a dash for None."""
        if value is None:
            return "–"
        return f"{100 * value:.1f} %" if self.is_share and math.isfinite(value) else number(value)

    @property
    def table(self) -> DisplayTable:
        """All members: those with a score first, the best on top; others by state."""
        rest = [member for member in self.members if member.score is None]
        rest.sort(key=lambda member: _ORDER.index(member.status))
        ordered = [*self.scored, *self.diverged, *rest]
        paths = self.paths
        training = [self.training] if self.training != self.measure else []
        columns = [*paths, "state", self.measure, "iteration", *training, "run"]
        rows = [
            [
                *(show(member.changes.get(path)) for path in paths),
                member.status,
                self.shown_score(member.score),
                "–" if member.iteration is None else str(member.iteration),
                *("–" if member.latest is None else number(member.latest) for _ in training),
                member.run_id,
            ]
            for member in ordered
        ]
        records = [
            {
                "run": member.run_id,
                "changes": dict(member.changes),
                "status": member.status,
                "measure": self.measure,
                "score": member.score,
                "iteration": member.iteration,
                "latest": member.latest,
                "error": member.error,
            }
            for member in ordered
        ]
        return DisplayTable(f"{self.record.sweep_id}: {self.counts}", columns, rows, records)


def read_status(runs: Path | str, record: SweepRecord, metric: str | None = None) -> SweepStatus:
    """Read the status of a sweep from the folders of started members.

    Parameters
    ----------
    metric
        ``STAGE/NAME`` of a recorded metric whose last value is a member's score; default: the
        sweep's metric, or the accuracy on the test set, or the first agent's return there.
    """
    spec_metric = record.spec.get("metric")
    minimize = metric in (None, spec_metric) and record.spec.get("direction") == "minimize"
    folders = {
        member.run_id: RunFolder(path)
        for member in record.members
        if ((path := Path(runs) / member.run_id) / "manifest.json").exists()
    }
    all_points = {run_id: folder.read_metrics() for run_id, folder in folders.items()}
    points = {
        run_id: [point for point in run_points if point.arm == MAIN_ARM]
        for run_id, run_points in all_points.items()
    }
    names = dict.fromkeys(
        f"{point.stage}/{name}"
        for run_points in points.values()
        for point in run_points
        for name in point.values
    )
    if metric is not None and names and metric not in names:
        raise DataError(
            f"sweep {record.sweep_id}: no member has recorded {metric!r}.{nearest(metric, names)}"
        )
    metric = metric or spec_metric
    fitting = (name for pattern in SCORES for name in names if pattern.match(name))
    training = next(fitting, "")
    scores: Mapping[str, Mapping[str, float]]
    if metric is not None:
        measure = metric
        scores = {run_id: _last_by_arm(each, metric) for run_id, each in all_points.items()}
    else:
        measure, scores = _tested(folders.values())
    members = []
    for member in record.members:
        arm_scores = scores.get(member.run_id, {})
        status = _member_status(member, folders, points, training)
        members.append(replace(status, score=arm_scores.get(MAIN_ARM), arm_scores=arm_scores))
    is_running = bool(runners(Path(runs) / record.sweep_id)) or any(
        member.status == "running" for member in members
    )
    return SweepStatus(
        record,
        members,
        measure,
        training or "in training",
        is_running,
        minimize,
        codes=sorted({label for folder in folders.values() if (label := _code(folder))}),
        data=_digests(folders.values()),
    )


def _code(folder: RunFolder) -> str:
    code = folder.manifest.code
    return (code.commit or "")[:12] + ("+" if code.dirty else "")


def _digests(folders: Iterable[RunFolder]) -> dict[str, list[str]]:
    """Return the digests of each data set of all arms of all members."""
    digests_by_dataset: dict[str, set[str]] = {}
    for folder in folders:
        for hashes in folder.manifest.dataset_hashes.values():
            for name, digest in hashes.items():
                digests_by_dataset.setdefault(name, set()).add(str(digest)[:16])
    return {name: sorted(digests) for name, digests in sorted(digests_by_dataset.items())}


def _last_by_arm(points: Sequence[MetricPoint], metric: str) -> dict[str, float]:
    arms = dict.fromkeys(point.arm for point in points)
    last = {arm: _last([p for p in points if p.arm == arm], metric)[1] for arm in arms}
    return {arm: value for arm, value in last.items() if value is not None}


def _tested(folders: Iterable[RunFolder]) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the test measure, common to all members, and the scores by run and arm."""
    results = {
        folder.run_id: test_scores for folder in folders if (test_scores := _results(folder))
    }
    names = [name for by_arm in results.values() for name, _ in by_arm.values()]
    mains = [by_arm[MAIN_ARM][0] for by_arm in results.values() if MAIN_ARM in by_arm]
    measure = next(iter(mains + names), TEST)
    return measure, {
        run: {arm: score for arm, (name, score) in by_arm.items() if name == measure}
        for run, by_arm in results.items()
    }


def _member_status(
    member: SweepMemberRecord,
    folders: Mapping[str, RunFolder],
    points: Mapping[str, Sequence[MetricPoint]],
    training: str,
) -> MemberStatus:
    if member.run_id not in folders:
        return MemberStatus(member.run_id, member.changes, "not started")
    folder, (iteration, latest) = folders[member.run_id], _last(points[member.run_id], training)
    return MemberStatus(
        member.run_id,
        member.changes,
        folder.status,
        iteration=iteration,
        latest=latest,
        error=folder.manifest.error,
    )


def _last(points: Sequence[MetricPoint], metric: str) -> tuple[int | None, float | None]:
    stage, _, name = metric.partition("/")
    recorded_points = [point for point in points if point.stage == stage and name in point.values]
    if not recorded_points:
        return None, None
    last = max(recorded_points, key=lambda point: point.iteration)
    return last.iteration, float(last.values[name])


def _results(folder: RunFolder) -> dict[str, tuple[str, float]]:
    """Return the name and value of the test score of each arm that is tested."""
    scores_by_arm = {
        table.arm: _result(table)
        for table in folder.read_tables()
        if table.name == TEST and len(table)
    }
    return {arm: result for arm, result in scores_by_arm.items() if result is not None}


def _result(table: ResultTable) -> tuple[str, float] | None:
    if has_decisions(table.columns):
        return f"{TEST} accuracy", accuracy(table.columns).value
    for name in evaluator_metrics(table.columns):
        return f"{TEST} {name}", mean_metric(table.columns, name).value
    for agent in agents_by_return(table.columns):
        return f"{TEST} return of {agent}", mean_return(table.columns, agent).value
    return None
