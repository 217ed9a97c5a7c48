"""GRPO and its variants: completions of one task are compared with each other."""

from __future__ import annotations

from ratchet.rollouts.batch import Batch
from ratchet.rollouts.finite_scores import check_scores
from trainers.language.groups import GroupRelativeMixin
from trainers.language.self_hosted import SelfHostedTrainer
from trainers.named import register_trainer


@register_trainer("grpo")
class GrpoTrainer(GroupRelativeMixin, SelfHostedTrainer):
    """Group relative policy optimisation with the variants of ``grpo.variant``.

    See :class:`ratchet.parameters.language.GrpoParameters`.
    """

    _group_metrics: dict[str, float]
    """Statistics of the groups compared last."""

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Compare each completion with its group; first subtract a KL penalty in the reward."""
        batch = batch.remove_redundant_left_padding().remove_redundant_right_padding()
        batch.values["token_level_scores"] = self._reward_fn(batch)
        if self._kl_coef > 0 and self._grpo.kl.place == "reward":
            batch = self._apply_kl_penalty(batch)
        return self._compute_advantage(batch), self._group_metrics

    def _compute_advantage(self, batch: Batch) -> Batch:
        """Set ``advantages``, computed from scores summed over each completion's tokens."""
        metadata = batch.metadata
        scores = batch.values["token_level_scores"]
        check_scores(scores, metadata.get("task_ids", ()), name="batch: token_level_scores")
        scores = scores.sum(1)
        advantages = self._compare(
            scores,
            metadata["group_ids"],
            runs=metadata["attempt_ids"],
            agents=metadata["agents"],
            averaged=batch.roles_or_agents,
            counts=~batch.is_padding,
        )
        metadata["advantages"] = advantages.advantage
        self._group_metrics = {f"grpo/{name}": value for name, value in advantages.metrics.items()}
        self._group_metrics["critic/rewards/mean"] = float(scores.mean())
        return batch
