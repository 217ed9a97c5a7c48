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
    """
    return group_advantages(
        torch.tensor([one.reward for one in trajectories], dtype=torch.float64),
        [one.group_id for one in trajectories],
        runs=[one.attempt_id for one in trajectories] if use_run_ids else None,
        agents=[one.agent for one in trajectories],
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
    tokens. Rows with an empty loss mask, such as padding, do not count.
    """
    mask = batch.values["loss_mask"].bool()
    return group_advantages(
        torch.where(mask, batch.values["token_level_scores"].double(), 0.0).sum(1),
        batch.metadata["group_ids"],
        runs=batch.metadata["attempt_ids"] if use_run_ids else None,
        agents=batch.metadata["agents"],
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
    found = trajectory_advantages(
        trajectories, use_run_ids=use_run_ids, baseline=baseline, scale=scale
    )
    if logger is not None:
        told = ", ".join(f"{name}={value:g}" for name, value in sorted(found.metrics.items()))
        logger.info("Advantages of %d trajectories: %s", len(trajectories), told)
    for one, advantage in zip(trajectories, found.advantage.tolist(), strict=True):
        one.advantage = advantage
    return list(trajectories)
