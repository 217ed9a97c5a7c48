"""Corrections for samples of another policy than the one that learns: older, or rounded otherwise.

The weights multiply losses of tokens, or their advantages; see Yao et al. (2025), "Your efficient
RL framework secretly brings you off-policy RL training".
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trainers.algorithms.kl import kl_estimate
from trainers.algorithms.language.policy_losses import MAX_LOG_RATIO
from trainers.algorithms.masks import masked_mean
from trainers.algorithms.ppo_losses import effective_sample_size

ImportanceLevel = Literal["token", "sequence"]


class ImportanceWeights(NamedTuple):
    """What :func:`importance_weights` computes."""

    weight: Tensor
    """``[B, T]``, 0 where the mask is; no gradient."""
    metrics: dict[str, float]
    """How far the sampler is from the trainer, and what was capped."""


def importance_weights(
    log_prob: Tensor,
    sampler_log_prob: Tensor,
    mask: Tensor,
    *,
    level: ImportanceLevel = "token",
    cap: float | None = 2.0,
) -> ImportanceWeights:
    """Compute min(π/π_sampler, cap) of tokens, or of whole rows.

    Parameters
    ----------
    log_prob, sampler_log_prob, mask
        ``[B, T]``: the trainer's before its update, and the sampler's.
    level
        ``token``: each token's ratio. ``sequence``: that of the row's shown tokens together.
    cap
        The truncation; none if None.

    Raises
    ------
    ValueError
        If the cap isn't above 0.
    """
    if cap is not None and cap <= 0:
        raise ValueError(f"cap: got {cap}, expected a number above 0, or None.")
    shown = mask.bool()
    difference = torch.where(shown, log_prob - sampler_log_prob, 0.0).detach()
    log_ratio = difference
    if level == "sequence":
        log_ratio = difference.sum(1, keepdim=True).expand_as(difference)
    ratio = torch.where(shown, log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), 0.0)
    capped = ratio if cap is None else ratio.clamp(max=cap)
    effective = effective_sample_size(
        log_ratio.reshape(-1, 1).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), shown.reshape(-1, 1)
    )
    metrics = {
        "weight_mean": float(masked_mean(capped, shown)),
        "weight_max": float(capped.max()) if capped.numel() else 0.0,
        "frac_capped": float(masked_mean((ratio > capped).float(), shown)),
        "sampler_kl": float(masked_mean(kl_estimate(-difference, "k3"), shown)),
        "log_prob_difference_mean": float(masked_mean(difference.abs(), shown)),
        "log_prob_difference_max": float(difference.abs().max()) if difference.numel() else 0.0,
        "effective_sample_size": float(effective[0]),
    }
    return ImportanceWeights(capped, metrics)
