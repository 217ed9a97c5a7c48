"""The loss of a value head, and rewards with a penalty for leaving a reference. ``[B, T]``."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.critic_losses import CriticLossType, clipped_distance
from trainers.algorithms.kl import kl_estimate
from trainers.algorithms.language.policy_losses import TokenLoss


def value_loss(
    value: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    kind: CriticLossType = "l2",
    old_value: Tensor | None = None,
    clip_value: float | None = None,
) -> TokenLoss:
    """Compute how far values are from their returns; see :func:`.critic_losses.clipped_distance`.

    The metric ``clip_fraction_value`` is of tokens whose value left ``old_value ± clip_value``.
    """
    shown = mask.bool()
    value, target = (torch.where(shown, x, 0.0) for x in (value, target.detach()))
    if old_value is not None:
        old_value = torch.where(shown, old_value.detach(), 0.0)
    loss = clipped_distance(value, target, kind=kind, old_value=old_value, clip_value=clip_value)
    if old_value is None or clip_value is None:
        return TokenLoss(loss, {})
    left = (value.detach() - old_value).abs() > clip_value
    return TokenLoss(loss, {"clip_fraction_value": left.to(loss.dtype)})


def penalised_rewards(
    reward: Tensor, log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor, *, coefficient: float
) -> Tensor:
    """Compute r_t − β·(log π − log π_ref), 0 where the mask is; no gradient."""
    penalty = kl_estimate(log_prob - ref_log_prob, "k1").detach()
    return torch.where(mask.bool(), reward - coefficient * penalty, 0.0)
