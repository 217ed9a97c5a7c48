"""Cross-entropy on an iteration's best completions: token-level expert iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ratchet.algorithms.language.losses import cross_entropy
from ratchet.algorithms.language.token_weights import weighted_sum
from ratchet.parameters.language import CrossEntropyParameters, PolicyLossParameters
from ratchet.rollouts.batch import Batch
from trainers.language.self_hosted import Figures, SelfHostedTrainer
from trainers.named import register_trainer

if TYPE_CHECKING:
    from ratchet.language_models.local.model import TokenScores


@register_trainer("cross_entropy")
class CrossEntropyTrainer(SelfHostedTrainer):
    """Trains on completions with sufficient reward, with equal weights for all tokens.

    See :class:`ratchet.parameters.language.CrossEntropyParameters`.
    """

    section: ClassVar[str] = "cross_entropy"
    required_fields: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "loss_mask")

    def _read_loss(self) -> PolicyLossParameters:
        self._given = self._parameters(CrossEntropyParameters, "cross_entropy")
        return PolicyLossParameters(aggregation="token_mean")

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Select the rows whose reward suffices, or that are the best of their group."""
        rewards = batch.metadata["rewards"]
        is_selected = rewards >= self._given.min_reward
        if self._given.per_group:
            best: dict[str, float] = {}
            for group, reward in zip(batch.metadata["group_ids"], rewards.tolist(), strict=True):
                best[group] = max(reward, best.get(group, reward))
            of_group = torch.tensor([best[group] for group in batch.metadata["group_ids"]])
            is_selected &= rewards == of_group
        rows = torch.nonzero(is_selected).flatten()
        return batch.select(rows), {"training/kept_fraction": len(rows) / max(1, len(batch))}

    def _compute_loss(
        self, scores: TokenScores, batch: Batch, weights: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Figures]:
        """Return the mean over tokens of −log π."""
        loss = cross_entropy(scores.log_probs, batch.values["loss_mask"]).loss
        figures: Figures = {}
        if scores.entropy is not None:
            figures["actor/entropy"] = weighted_sum(scores.entropy.detach(), weights[1])
        return weighted_sum(loss, weights[0]), figures
