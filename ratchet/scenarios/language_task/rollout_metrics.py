"""What is said of many rollouts in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.rollout import Rollout


def rollout_metrics(
    rollouts: Sequence[Rollout], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return what trajectories don't tell: counts, and means over the rollouts that are left.

    What they do tell (scores, lengths, how they ended) is a trainer's to say, of those it learns
    from.
    """
    kept = [rollout for rollout in rollouts if not rollout.is_dropped]
    counts = {
        "rollouts": len(kept),
        "trajectories": len(trajectories),
        "failures": sum(rollout.num_failures for rollout in rollouts),
        "dropped": len(rollouts) - len(kept),
    }
    found = {f"rollout/num_{name}": float(count) for name, count in counts.items()}
    if not kept:
        return found
    found["rollout/reward"] = fmean(rollout.evaluation.reward for rollout in kept)
    found["rollout/turns"] = fmean(rollout.played.num_turns for rollout in kept)
    return found
