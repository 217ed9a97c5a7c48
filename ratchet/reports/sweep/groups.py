"""Groups of a sweep: members that differ only in their seed, for each arm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.reports.comparison.formatting import TOO_FEW
from ratchet.reports.comparison.options import with_enough_seeds
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.sweep.status import SweepStatus
from ratchet.reports.tables import show
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.stratified import interquartile_mean, stratified_interval

SEED = "seed"


@dataclass(frozen=True)
class SweepGroup:
    """One arm of the completed members that differ only in their seed; one score for each."""

    arm: str
    changes: Mapping[str, Any]
    label: str
    scores: Sequence[float]

    @property
    def iqm(self) -> Estimate:
        """Interquartile mean of the scores; without an interval if they are few."""
        return with_enough_seeds(
            stratified_interval([self.scores], interquartile_mean), [len(self.scores)]
        )


def sweep_groups(status: SweepStatus) -> list[SweepGroup]:
    """List the groups of a sweep, the best interquartile mean first."""
    found: dict[tuple[str, str], list[float]] = {}
    changes: dict[str, Mapping[str, Any]] = {}
    for member in status.members:
        if member.status != "completed":
            continue
        own = {path: value for path, value in member.changes.items() if path != SEED}
        key = json.dumps(own, sort_keys=True, default=str)
        changes[key] = own
        for arm, score in member.arm_scores.items():
            found.setdefault((key, arm), []).append(score)
    several = len({arm for _, arm in found}) > 1
    groups = [
        SweepGroup(arm, changes[key], _label(arm if several else "", changes[key]), scores)
        for (key, arm), scores in found.items()
    ]
    sign = 1 if status.minimize else -1
    return sorted(groups, key=lambda group: sign * group.iqm.value)


def group_table(status: SweepStatus, groups: Sequence[SweepGroup]) -> DisplayTable:
    """Return the groups with their numbers of members, interquartile means and intervals."""
    rows, records = [], []
    for group in groups:
        iqm = group.iqm
        ends = f"{status.shown_score(iqm.low)} to {status.shown_score(iqm.high)}"
        lowest, highest = min(group.scores), max(group.scores)
        rows.append(
            [
                group.label,
                str(len(group.scores)),
                status.shown_score(iqm.value),
                TOO_FEW if iqm.low != iqm.low else ends,  # NaN: too few
                status.shown_score(lowest),
                status.shown_score(highest),
            ]
        )
        records.append(
            {
                "arm": group.arm,
                "changes": dict(group.changes),
                "n": len(group.scores),
                "measure": status.measure,
                "iqm": iqm.value,
                "scores": list(group.scores),
            }
        )
    columns = ("group", "n", f"IQM of {status.measure}", "95 % interval", "lowest", "highest")
    return DisplayTable("groups: completed members by arm, over seeds", columns, rows, records)


def _label(arm: str, changes: Mapping[str, Any]) -> str:
    parts = [f"arm {arm}"] if arm else []
    parts += [f"{path}={show(value)}" for path, value in changes.items()]
    return " · ".join(parts) or "all members"
