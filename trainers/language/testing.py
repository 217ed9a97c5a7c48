"""What a test of a language model found: means, and a row for each answer."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trainers.staged import TestResult

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory


def summarise_answers(places: Sequence[int], trajectories: Sequence[Trajectory]) -> TestResult:
    """Sum up answers to tasks; ``places`` are those of their tasks in the dataset.

    Parts of the reward and metrics of answers are averaged by their names.
    """
    agent = trajectories[0].agent
    lengths = [trajectory.num_written for trajectory in trajectories]
    table: dict[str, list[Any]] = {
        "datapoint_id": list(places),
        f"reward.{agent}": [trajectory.reward for trajectory in trajectories],
        "response_length": lengths,
    }
    metrics = {
        "num_datapoints": float(len(set(places))),
        f"{agent}.mean_episode_reward": fmean(table[f"reward.{agent}"]),
        "mean_response_length": fmean(lengths),
        "truncated_fraction": fmean(float(t.is_truncated) for t in trajectories),
    }
    for part in dict.fromkeys(name for t in trajectories for name in (*t.scores, *t.metrics)):
        found = [t.get(part) for t in trajectories if t.get(part) is not None]
        metrics[part] = fmean(found)
    return TestResult(metrics, table)
