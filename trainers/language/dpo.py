"""Direct preference optimisation on an iteration's completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ratchet.algorithms.language.losses import dpo_loss, sequence_log_prob
from ratchet.parameters.language import LanguageDpoParameters, PolicyLossParameters
from ratchet.rollouts.batch import Batch
from trainers.language.self_hosted import Figures, SelfHostedTrainer
from trainers.named import register_trainer

if TYPE_CHECKING:
    from ratchet.language_models.local.model import TokenScores


@register_trainer("language_dpo")
class DpoTrainer(SelfHostedTrainer):
    """Trains on the best and the worst completion of each task as a pair.

    See :class:`ratchet.parameters.language.LanguageDpoParameters`.
    """

    section: ClassVar[str] = "language_dpo"
    required_fields: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "loss_mask"),
        "ref_log_probs",
    )
    rows_together: ClassVar[int] = 2
    _logs_entropy = False

    def _read_loss(self) -> PolicyLossParameters:
        self._given = self._parameters(LanguageDpoParameters, "language_dpo")
        return PolicyLossParameters()

    @property
    def _needs_reference(self) -> bool:
        """Always True: the loss compares with the initial model."""
        return True

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Arrange pairs in adjacent rows: the preferred completion, then the other."""
        pairs = preference_pairs(batch.metadata["group_ids"], batch.metadata["rewards"].tolist())
        rows = [row for pair in pairs for row in pair]
        paired = batch.select(torch.tensor(rows, dtype=torch.long))
        if rows:
            paired.values["ref_log_probs"] = self._compute_ref_log_probs(paired)
        return paired, {"training/num_pairs": float(len(pairs))}

    def _weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return equal weights for all pairs."""
        each = torch.full(batch.values["loss_mask"].shape, 2 / max(1, len(batch)))
        each = each.to(batch.values["loss_mask"].device)
        return each, each

    def _compute_loss(
        self, scores: TokenScores, batch: Batch, weights: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Figures]:
        """Return the loss over pairs."""
        mask = batch.values["loss_mask"]
        log_probs = sequence_log_prob(scores.log_probs, mask)
        reference = sequence_log_prob(batch.values["ref_log_probs"], mask)
        weight = weights[0][::2, 0]
        pair_loss = dpo_loss(
            log_probs[::2], log_probs[1::2], reference[::2], reference[1::2], beta=self._given.beta
        )
        margin = (log_probs - reference).detach() * self._given.beta
        figures = {
            "actor/preferred_reward": (margin[::2] * weight).sum(),
            "actor/other_reward": (margin[1::2] * weight).sum(),
            "actor/preference_accuracy": ((margin[::2] > margin[1::2]).float() * weight).sum(),
        }
        return (pair_loss.loss * weight).sum(), figures


def preference_pairs(groups: Sequence[str], rewards: Sequence[float]) -> list[tuple[int, int]]:
    """Return the best and the worst row of each group (the first of equals) if they differ."""
    members: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    pairs = []
    for rows in members.values():
        best = max(rows, key=lambda row: rewards[row])
        worst = min(rows, key=lambda row: rewards[row])
        if rewards[best] > rewards[worst]:
            pairs.append((best, worst))
    return pairs
