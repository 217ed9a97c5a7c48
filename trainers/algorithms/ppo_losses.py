"""Policy losses of proximal policy optimisation (Schulman et al. 2017). B frames, A agents."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.kl import kl_estimate
from trainers.algorithms.masks import masked_mean


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """Compute max(−ρA, −clip(ρ, 1−ε_lo, 1+ε_hi)A), elementwise."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-ratio * advantage, -clipped * advantage)


def clipped_policy_loss(
    log_ratio: Tensor, advantage: Tensor, mask: Tensor, *, clip_epsilon: float
) -> Tensor:
    """Compute the clipped objective, max(−ρA, −clip(ρ, 1−ε, 1+ε)A), per agent: ``[A]``.

    Parameters
    ----------
    log_ratio
        ``[B, A]``: log π − log π_old of the action taken, ρ = exp of it.
    advantage, mask
        ``[B, A]``; the mean is over the mask.
    clip_epsilon
        ε.
    """
    ratio = torch.where(mask, log_ratio, 0.0).exp()
    loss = clipped_surrogate(ratio, advantage, clip_low=clip_epsilon, clip_high=clip_epsilon)
    return masked_mean(loss, mask, 0)


def kl_penalty_policy_loss(
    log_ratio: Tensor, advantage: Tensor, mask: Tensor, *, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute −ρA + β·KL(π_old ‖ π), and the KL, per agent: ``[A]`` each.

    The KL is estimated from the actions taken by π_old as the mean of (ρ − 1) − log ρ, of
    which the value and the gradient are unbiased.

    Parameters
    ----------
    log_ratio, advantage, mask
        ``[B, A]``.
    beta
        ``[A]``: the weight of the penalty.
    """
    kl = approximate_kl(log_ratio, mask)
    ratio = torch.where(mask, log_ratio, 0.0).exp()
    return masked_mean(-ratio * advantage, mask, 0) + beta * kl, kl


def approximate_kl(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Estimate KL(π_old ‖ π) as the mean of (ρ − 1) − log ρ; ``[B, A]`` → ``[A]``."""
    shown = torch.where(mask, log_ratio, 0.0)
    return masked_mean(kl_estimate(-shown, "k3"), mask, 0)


def adapt_kl_beta(
    beta: Tensor, kl: Tensor, *, target: float, increment: float, decrement: float
) -> Tensor:
    """Change the weight of the penalty after a policy update.

    β is multiplied by ``increment`` where the KL is more than 1.5 times the target, by
    ``decrement`` where it is less than the target divided by 1.5.

    Parameters
    ----------
    beta, kl
        Same shape.
    target, increment, decrement
        Positive numbers, e.g. 0.01, 2 and 0.5.
    """
    grown = torch.where(kl > target * 1.5, beta * increment, beta)
    return torch.where(kl < target / 1.5, beta * decrement, grown)


def clip_fraction(log_ratio: Tensor, mask: Tensor, *, clip_epsilon: float) -> Tensor:
    """Compute the share of actions whose ρ left [1−ε, 1+ε]; ``[B, A]`` → ``[A]``."""
    ratio = torch.where(mask, log_ratio, 0.0).exp()
    return masked_mean(((ratio - 1).abs() > clip_epsilon).to(ratio.dtype), mask, 0)


def effective_sample_size(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Compute (Σρ)² / (n Σρ²), between 1/n and 1; 0 where the mask is empty. → ``[A]``."""
    ratio = torch.where(mask, log_ratio, -torch.inf).exp()
    count = mask.sum(0).clamp(min=1)
    return ratio.sum(0).square() / (count * ratio.square().sum(0)).clamp(min=1e-30)
