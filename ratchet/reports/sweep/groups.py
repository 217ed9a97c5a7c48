"""Groups of a sweep: members that differ only in their seed, for each arm."""

from __future__ import annotations

import json
import math
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
    """One arm of the completed members that differ only in their seed.

    ``scores`` are the finite ones; ``num_diverged`` counts the members whose score is not finite.
    """

    arm: str
    changes: Mapping[str, Any]
    label: str
    scores: Sequence[float]
    num_diverged: int = 0

    @property
    def iqm(self) -> Estimate:
        """Interquartile mean of the scores, NaN without scores; no interval if they are few."""
        if not self.scores:
            return Estimate(math.nan, math.nan, math.nan, 0, method="none: no finite score")
        return with_enough_seeds(
            stratified_interval([self.scores], interquartile_mean), [len(self.scores)]
        )


def sweep_groups(status: SweepStatus) -> list[SweepGroup]:
    """List the groups of a sweep, the best interquartile mean first.

    Groups with members whose score is not finite, the worst score, are last.
    """
    scores_by_group: dict[tuple[str, str], list[float]] = {}
    changes: dict[str, Mapping[str, Any]] = {}
    for member in status.members:
        if member.status != "completed":
            continue
        varied = {path: value for path, value in member.changes.items() if path != SEED}
        key = json.dumps(varied, sort_keys=True, default=str)
        changes[key] = varied
        for arm, score in member.arm_scores.items():
            scores_by_group.setdefault((key, arm), []).append(score)
    several = len({arm for _, arm in scores_by_group}) > 1
    groups = []
    for (key, arm), scores in scores_by_group.items():
        finite = list(filter(math.isfinite, scores))
        words = [f"arm {arm}"] if several and arm else []
        words += [f"{path}={show(value)}" for path, value in changes[key].items()]
        label = " · ".join(words) or "all members"
        groups.append(SweepGroup(arm, changes[key], label, finite, len(scores) - len(finite)))
    sign = 1 if status.minimize else -1

    def rank(group: SweepGroup) -> tuple[bool, bool, float]:
        return not group.scores, group.num_diverged > 0, sign * group.iqm.value

    return sorted(groups, key=rank)


def group_table(status: SweepStatus, groups: Sequence[SweepGroup]) -> DisplayTable:
    """Return the groups with their numbers of members, interquartile means and intervals."""
    rows, records = [], []
    for group in groups:
        iqm = group.iqm
        ends = f"{status.shown_score(iqm.low)} to {status.shown_score(iqm.high)}"
        total = len(group.scores) + group.num_diverged
        rows.append(
            [
                group.label,
                f"{len(group.scores)} of {total}" if group.num_diverged else str(total),
                status.shown_score(iqm.value if group.scores else None),
                TOO_FEW if iqm.low != iqm.low else ends,  # NaN: too few
                status.shown_score(min(group.scores, default=None)),
                status.shown_score(max(group.scores, default=None)),
            ]
        )
        records.append(
            {
                "arm": group.arm,
                "changes": dict(group.changes),
                "n": len(group.scores),
                "diverged": group.num_diverged,
                "measure": status.measure,
                "iqm": iqm.value,
                "scores": list(group.scores),
            }
        )
    columns = ("group", "n", f"IQM of {status.measure}", "95 % interval", "lowest", "highest")
    return DisplayTable("groups: completed members by arm, over seeds", columns, rows, records)
