"""Policy loss as configured: its type, the weights of tokens, and further terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ratchet.algorithms.kl import kl_estimate
from ratchet.algorithms.language import losses
from ratchet.algorithms.language.losses import TokenLoss
from ratchet.algorithms.language.token_weights import (
    importance_weights,
    token_weights,
    weighted_sum,
)

if TYPE_CHECKING:
    from ratchet.language_models.local.model import TokenScores
    from ratchet.parameters.language import PolicyLossParameters
    from ratchet.rollouts.batch import Batch

Figures = dict[str, Tensor]
_MEASURED = {
    "ratio": "actor/ratio",
    "approximate_kl": "actor/approximate_kl",
    "clip_fraction_low": "actor/clip_fraction_low",
    "clip_fraction_high": "actor/clip_fraction_high",
    "clip_fraction_dual": "actor/clip_fraction_dual",
}


class PolicyLoss:
    """The loss of a minibatch's rows; contributions of the rows add up to the minibatch's loss.

    Parameters
    ----------
    parameters
        The configuration.
    max_tokens
        The most tokens of a reply, for the aggregation ``constant``.
    is_corrected
        Whether tokens are weighted by the ratio of the trainer's to the sampler's probabilities
        unless configured: for completions of earlier weights, or of another library.
    """

    def __init__(
        self, parameters: PolicyLossParameters, *, max_tokens: int = 1, is_corrected: bool = False
    ) -> None:
        self.parameters = parameters
        level: Literal["token", "sequence"] = (
            "sequence" if parameters.policy_loss == "gspo" else "token"
        )
        self.correction = parameters.sampler_correction or (level if is_corrected else "none")
        self.constant = parameters.aggregation_constant or max_tokens

    def weights(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens' weights in the loss and in metrics, float32[B, T] of the minibatch."""
        constant = float(self.constant * max(1, int((mask.sum(1) > 0).sum())))
        loss = token_weights(mask, self.parameters.aggregation, constant=constant)
        return loss, token_weights(mask, "token_mean")

    def __call__(
        self,
        scores: TokenScores,
        batch: Batch,
        weights: tuple[Tensor, Tensor],
        *,
        kl_coef: float = 0.0,
    ) -> tuple[Tensor, Figures]:
        """Return the rows' contributions to the minibatch's loss and to means over tokens.

        ``weights`` are the rows' part of :meth:`weights`. Without ``old_log_probs`` in the batch
        the current policy is the old one.
        """
        values, (weight, share) = batch.values, weights
        mask = values["loss_mask"]
        old = values.get("old_log_probs", scores.log_probs.detach())
        token_loss = self._policy_loss(scores.log_probs, old, values["advantages"], mask)
        loss, correction = token_loss.loss, self._correction(old, values, mask)
        if correction is not None:
            loss = loss * correction
        total = weighted_sum(loss, weight)
        figures = {_MEASURED[name]: value for name, value in token_loss.metrics.items()}
        difference = (old - values["rollout_log_probs"]).detach()
        figures["actor/sampler_difference"] = difference.abs()
        figures["actor/sampler_kl"] = kl_estimate(-difference, "k3")
        if scores.entropy is not None:
            figures["actor/entropy"] = scores.entropy.detach()
            if self.parameters.entropy_coef > 0:
                total = total - self.parameters.entropy_coef * weighted_sum(scores.entropy, weight)
        if kl_coef > 0:
            kl = losses.kl_loss(
                scores.log_probs, values["ref_log_probs"], mask, kind=self.parameters.kl.kind
            )
            total = total + kl_coef * weighted_sum(kl.loss, weight)
            figures["actor/kl"] = kl.metrics["kl"]
        return total, {name: weighted_sum(value, share) for name, value in figures.items()}

    def _policy_loss(
        self, log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        parameters = self.parameters
        match parameters.policy_loss:
            case "reinforce":
                return losses.reinforce(log_probs, advantages, mask)
            case "importance_sampling":
                return losses.importance_sampling(log_probs, old, advantages, mask)
            case "cispo":
                return losses.cispo(
                    log_probs, old, advantages, mask, max_ratio=1 + parameters.clip_high
                )
            case "gspo":
                clips = {"clip_low": parameters.clip_low, "clip_high": parameters.clip_high}
                return losses.gspo(log_probs, old, advantages, mask, **clips)
            case _:
                return losses.ppo_clip(
                    log_probs,
                    old,
                    advantages,
                    mask,
                    clip_low=parameters.clip_low,
                    clip_high=parameters.clip_high,
                    dual_clip=parameters.dual_clip,
                )

    def _correction(self, old: Tensor, values: dict[str, Tensor], mask: Tensor) -> Tensor | None:
        """Return importance weights of tokens: the trainer's probability over the sampler's."""
        kind = self.correction
        if kind == "none":
            return None
        return importance_weights(
            old, values["rollout_log_probs"], mask, level=kind, cap=self.parameters.sampler_cap
        ).weight


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on a device; itself if they already are."""
    if all(value.device == device for value in batch.values.values()):
        return batch
    values = {name: value.to(device) for name, value in batch.values.items()}
    return type(batch)(values, dict(batch.metadata))
