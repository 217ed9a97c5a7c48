"""Policy losses of frames: REINFORCE and proximal policy optimisation. B frames, A agents.

ρ = π / π_old of the action taken; its logarithm is bounded by :func:`.kl.bounded_log_ratio`. Losses
of tokens are in :mod:`.language.losses`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.algorithms.kl import bounded_log_ratio, kl_estimate
from ratchet.algorithms.masks import masked_mean


def reinforce_loss(log_prob: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Compute −log π·w per agent (Williams 1992): ``[A]``.

    Its gradient is that of the expected return only for actions sampled from the current π.

    Parameters
    ----------
    log_prob
        ``[B, A]``: of the action taken.
    weight
        ``[B, A]``: a return or an advantage; no gradient goes through it.
    mask
        Boolean ``[B, A]``; the mean is over it.
    """
    return masked_mean(-log_prob * weight.detach(), mask, 0)


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """Compute max(−ρA, −clip(ρ, 1−ε_lo, 1+ε_hi)A), elementwise (Schulman et al. 2017)."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-ratio * advantage, -clipped * advantage)


def clipped_policy_loss(
    log_ratio: Tensor, advantage: Tensor, mask: Tensor, *, clip_epsilon: float
) -> Tensor:
    """Compute PPO's clipped loss, max(−ρA, −clip(ρ, 1−ε, 1+ε)A), per agent: ``[A]``.

    Parameters
    ----------
    log_ratio
        ``[B, A]``: log π − log π_old of the action taken.
    advantage, mask
        ``[B, A]``; the mean is over the mask.
    clip_epsilon
        ε.
    """
    ratio = _ratio(log_ratio, mask)
    loss = clipped_surrogate(ratio, advantage, clip_low=clip_epsilon, clip_high=clip_epsilon)
    return masked_mean(loss, mask, 0)


def kl_penalty_policy_loss(
    log_ratio: Tensor, advantage: Tensor, mask: Tensor, *, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute −ρA + β·KL(π_old ‖ π), and the KL, per agent: ``[A]`` each.

    The KL is estimated from actions sampled from π_old as the mean of (ρ − 1) − log ρ, whose
    value and gradient are unbiased.

    Parameters
    ----------
    log_ratio, advantage, mask
        ``[B, A]``.
    beta
        ``[A]``: the weight of the penalty.
    """
    kl = approximate_kl(log_ratio, mask)
    return masked_mean(-_ratio(log_ratio, mask) * advantage, mask, 0) + beta * kl, kl


def approximate_kl(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Estimate KL(π_old ‖ π) as the mean of (ρ − 1) − log ρ; ``[B, A]`` → ``[A]``."""
    masked = torch.where(mask, log_ratio, 0.0)
    return masked_mean(kl_estimate(-masked, "k3"), mask, 0)


def clip_fraction(log_ratio: Tensor, mask: Tensor, *, clip_epsilon: float) -> Tensor:
    """Compute the share of actions whose ρ left [1−ε, 1+ε]; ``[B, A]`` → ``[A]``."""
    ratio = _ratio(log_ratio, mask)
    return masked_mean(((ratio - 1).abs() > clip_epsilon).to(ratio.dtype), mask, 0)


def effective_sample_size(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Compute (Σρ)² / (n Σρ²), between 1/n and 1; 0 where the mask is empty. → ``[A]``."""
    ratio = torch.where(mask, bounded_log_ratio(log_ratio), -torch.inf).exp()
    count = mask.sum(0).clamp(min=1)
    return ratio.sum(0).square() / (count * ratio.square().sum(0)).clamp(min=1e-30)


def _ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Return ρ, 1 outside the mask."""
    return bounded_log_ratio(torch.where(mask, log_ratio, 0.0)).exp()
