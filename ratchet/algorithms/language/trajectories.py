"""Group advantages of trajectories and of batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ratchet.algorithms.language.group_advantages import (
    Baseline,
    GroupAdvantages,
    Scale,
    group_advantages,
)
from ratchet.rollouts.finite_scores import check_scores

if TYPE_CHECKING:
    from ratchet.rollouts.batch import Batch
    from ratchet.rollouts.trajectory import Trajectory


def trajectory_advantages(
    trajectories: Sequence[Trajectory],
    *,
    use_run_ids: bool = True,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    agent_averages: Mapping[str, float] | None = None,
    decay: float = 0.9,
) -> GroupAdvantages:
    """Compute advantages of trajectories by their ``group_id``, without setting them.

    See :func:`.group_advantages.group_advantages`; with ``use_run_ids`` the trajectories of one
    attempt (``attempt_id``) count once. Trajectories without tokens of the model do not count.
    Raises DataError if a reward is not finite.
    """
    rewards = torch.tensor([one.reward for one in trajectories], dtype=torch.float64)
    check_scores(rewards, [one.task_id for one in trajectories], name="trajectories: reward")
    return group_advantages(
        rewards,
        [one.group_id for one in trajectories],
        runs=[one.attempt_id for one in trajectories] if use_run_ids else None,
        agents=[one.role_or_agent for one in trajectories],
        counts=torch.tensor([one.num_written > 0 for one in trajectories], dtype=torch.bool),
        baseline=baseline,
        scale=scale,
        agent_averages=agent_averages,
        decay=decay,
    )


def batch_advantages(
    batch: Batch,
    *,
    use_run_ids: bool = True,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    agent_averages: Mapping[str, float] | None = None,
    decay: float = 0.9,
) -> GroupAdvantages:
    """Compute advantages of a batch's rows from the sums of their ``token_level_scores``.

    As for :func:`trajectory_advantages`; set ``batch.metadata["advantages"]`` to assign them to
    tokens. Rows with an empty loss mask, such as padding, do not count. Raises DataError if a score
    is not finite.
    """
    mask = batch.values["loss_mask"].bool()
    scores = torch.where(mask, batch.values["token_level_scores"].double(), 0.0)
    check_scores(scores, batch.metadata.get("task_ids", ()), name="batch: token_level_scores")
    return group_advantages(
        scores.sum(1),
        batch.metadata["group_ids"],
        runs=batch.metadata["attempt_ids"] if use_run_ids else None,
        agents=batch.roles_or_agents,
        counts=mask.any(1),
        baseline=baseline,
        scale=scale,
        agent_averages=agent_averages,
        decay=decay,
    )


def compute_grpo_advantage_for_trajectories(
    trajectories: Sequence[Trajectory],
    *,
    use_run_ids: bool = True,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    logger: logging.Logger | None = None,
) -> list[Trajectory]:
    """Set each trajectory's ``advantage``, and return the trajectories.

    Parameters as for :func:`trajectory_advantages`; a ``logger`` receives the metrics of groups.
    """
    advantages = trajectory_advantages(
        trajectories, use_run_ids=use_run_ids, baseline=baseline, scale=scale
    )
    if logger is not None:
        text = ", ".join(f"{name}={value:g}" for name, value in sorted(advantages.metrics.items()))
        logger.info("Advantages of %d trajectories: %s", len(trajectories), text)
    for one, advantage in zip(trajectories, advantages.advantage.tolist(), strict=True):
        one.advantage = advantage
    return list(trajectories)
