"""What is said of many rollouts in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.rollout import Rollout


def rollout_metrics(
    rollouts: Sequence[Rollout], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return counts (``rollout/num_…``) and means over the rollouts that were not dropped.

    Lengths are those of trajectories, in tokens.
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
    values: dict[str, list[float]] = {}
    for rollout in kept:
        attempt, evaluation = rollout.played, rollout.evaluation
        said = {
            "reward": evaluation.reward,
            "truncated": float(attempt.finish_reason == "length"),
            "turns": float(attempt.num_turns),
            **{f"score/{name}": value for name, value in evaluation.parts.items()},
            **attempt.episode.metrics(),
            **evaluation.metrics,
        }
        for name, value in said.items():
            values.setdefault(f"rollout/{name}", []).append(float(value))
    lengths = {
        "response_length": [trajectory.num_written for trajectory in trajectories],
        "prompt_length": [trajectory.num_prompt for trajectory in trajectories],
    }
    for name, sizes in lengths.items():
        found |= {f"{name}/max": float(max(sizes)), f"{name}/min": float(min(sizes))}
        values[f"{name}/mean"] = [float(size) for size in sizes]
    return found | {name: sum(each) / len(each) for name, each in values.items()}
