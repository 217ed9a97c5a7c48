"""Custom trainer for a model hosted by a training service: it sets the advantages.

    ratchet run examples/language/my_remote_task.yaml

``config.algorithm`` contains ``trainer.algorithm`` of the experiment file.
"""

from __future__ import annotations

from typing import Any

from ratchet.rollouts import Trajectory
from trainers import RemoteApiTrainer


class MyRemoteTrainer(RemoteApiTrainer):
    """Trainer with the advantage: reward minus the mean reward of the task's completions."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401 -- an OmegaConf config, or a mapping
        super().__init__(config)
        self._advantage_weight = self._config.algorithm.get("advantage_weight", 1.0)

    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        groups: dict[str, list[Trajectory]] = {}  # all completions of a task in an iteration
        for trajectory in trajectories:
            groups.setdefault(trajectory.get("run_id", "default"), []).append(trajectory)
        for group in groups.values():
            advantages = self._compute_group_advantages(group)
            for trajectory, advantage in zip(group, advantages, strict=True):
                trajectory.advantage = advantage * self._advantage_weight
        total = sum(trajectory.advantage or 0.0 for trajectory in trajectories)
        metrics["custom/advantage_mean"] = total / len(trajectories)
        return trajectories

    def _compute_group_advantages(self, group: list[Trajectory]) -> list[float]:
        rewards = [trajectory.reward for trajectory in group]
        mean_reward = sum(rewards) / len(rewards)
        return [reward - mean_reward for reward in rewards]
