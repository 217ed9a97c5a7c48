"""GRPO with a model at a training service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ratchet.algorithms.language.metrics import log_grpo_metrics
from ratchet.errors import ParameterError
from ratchet.rollouts.finite_scores import check_scores
from trainers.language.groups import GroupRelativeMixin
from trainers.language.remote_api import RemoteApiTrainer
from trainers.language.remote_settings import ServiceConfig, check_loss
from trainers.named import register_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters


@register_trainer("remote_grpo")
class RemoteGrpoTrainer(GroupRelativeMixin, RemoteApiTrainer):
    """Group relative policy optimisation at a training service, with ``grpo.variant``.

    See :class:`ratchet.parameters.language.GrpoParameters`. Not supported by services: a KL
    penalty, an entropy bonus, a dual clip.
    """

    @classmethod
    def check_learner(
        cls, hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
    ) -> None:
        """Refuse options that a training service does not support."""
        super().check_learner(hyper_params, agents)
        service = hyper_params.language.train_service
        check_loss(hyper_params.grpo.settled, "grpo", service.backend)
        config = ServiceConfig.of(service)
        if config.loss_fn is not None:
            raise ParameterError(
                f"language.train_service.config.loss_fn: got {config.loss_fn!r} for remote_grpo,"
                " whose loss is grpo.policy_loss; leave it out."
            )

    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        """Compare each completion with its group."""
        rewards = torch.tensor([one.reward for one in trajectories])
        check_scores(rewards, [one.task_id for one in trajectories], name="trajectories: reward")
        advantages = self._compare(
            rewards,
            [one.group_id for one in trajectories],
            runs=[one.attempt_id for one in trajectories],
            agents=[one.agent for one in trajectories],
            averaged=[one.role_or_agent for one in trajectories],
            counts=torch.tensor([one.num_written > 0 for one in trajectories]),
        )
        for one, advantage in zip(trajectories, advantages.advantage.tolist(), strict=True):
            one.advantage, one.token_advantages = advantage, None
        log_grpo_metrics(trajectories, metrics)
        metrics.update({f"grpo/{name}": value for name, value in advantages.metrics.items()})
        return trajectories
