"""GRPO and its family: answers to one task are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.parameters.language import GrpoParameters, PolicyLossParameters
from ratchet.rollouts.batch import Batch
from trainers.algorithms.language.group_advantages import group_advantages
from trainers.language.self_hosted import SelfHostedTrainer
from trainers.registry import register_trainer

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory


@register_trainer("grpo")
class GrpoTrainer(SelfHostedTrainer):
    """Group relative policy optimisation, and what ``grpo.variant`` says.

    See :class:`ratchet.parameters.language.GrpoParameters`.
    """

    section: ClassVar[str] = "grpo"

    _group_metrics: dict[str, float]
    """What the groups that were compared last had to teach."""

    def _read_loss(self) -> PolicyLossParameters:
        self._grpo = self._parameters(GrpoParameters, "grpo").settled
        self._averages: dict[str, float] = {}
        return self._grpo

    @property
    def max_resamples(self) -> int:
        """How many times further tasks may be played in place of groups that are all alike."""
        return self._grpo.max_resamples if self._grpo.dynamic_sampling else 0

    def keeps_group(self, group: Sequence[Trajectory]) -> bool:
        """Return whether anything is learned from a group; all are kept unless resampled."""
        return not self._grpo.dynamic_sampling or len({one.reward for one in group}) > 1

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Compare each answer with its group; a pull in the reward is taken off first."""
        batch = batch.remove_redundant_left_padding().remove_redundant_right_padding()
        batch.values["token_level_scores"] = self._reward_fn(batch)
        if self._kl_coef > 0 and self._grpo.kl.place == "reward":
            batch = self._apply_kl_penalty(batch)
        return self._compute_advantage(batch), self._group_metrics

    def _compute_advantage(self, batch: Batch) -> Batch:
        """Set ``advantages``, of scores that are summed over each answer's tokens."""
        given, about = self._grpo, batch.metadata
        scores = batch.values["token_level_scores"].sum(1)
        assert given.baseline is not None  # settled
        assert given.advantage_scale is not None
        of_batch = given.baseline == "batch_mean"
        found = group_advantages(
            scores,
            [""] * len(batch) if of_batch else about["group_ids"],
            runs=about["run_ids"],
            agents=about["agents"],
            counts=~batch.is_padding,
            baseline="mean" if given.baseline == "batch_mean" else given.baseline,
            scale=given.advantage_scale,
            agent_averages=self._averages,
            decay=given.baseline_decay,
        )
        self._averages = found.agent_averages
        about["advantages"] = found.advantage
        self._group_metrics = {f"grpo/{name}": value for name, value in found.metrics.items()}
        self._group_metrics["critic/rewards/mean"] = float(scores.mean())
        return batch

    def take_state(self) -> dict[str, Any]:
        """Return the agents' averages too."""
        return {**super().take_state(), "averages": dict(self._averages)}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`take_state` returned."""
        super().put_state(state)
        self._averages = dict(state["averages"])
