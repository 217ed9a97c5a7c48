"""Losses of policies, token by token. ρ = exp(log π − log π_old), A the advantage.

Advantages and what the old policy said carry no gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainers.algorithms.kl import KlEstimator, kl_estimate
from trainers.algorithms.ppo_losses import clipped_surrogate

MAX_LOG_RATIO = 20.0
"""Beyond it ρ is not told from e^20: its gradient would be numbers without meaning, or inf."""


class TokenLoss(NamedTuple):
    """A loss and what is measured with it, each ``[B, T]`` and 0 where the mask is.

    Sum the loss with the weights of the aggregation, the metrics with those of a token mean.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


def reinforce(log_prob: Tensor, advantage: Tensor, mask: Tensor) -> TokenLoss:
    """Compute −log π·A (Williams 1992), ``[B, T]``."""
    log_prob, advantage = _shown(mask, log_prob, advantage)
    return TokenLoss(-log_prob * advantage.detach(), {})


def importance_sampling(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor
) -> TokenLoss:
    """Compute −ρA, ``[B, T]``."""
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    ratio = log_ratio.exp()
    return TokenLoss(-ratio * advantage, _measured(log_ratio, mask))


def ppo_clip(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Compute max(−ρA, −clip(ρ, 1−ε_lo, 1+ε_hi)A) (Schulman et al. 2017), ``[B, T]``.

    Parameters
    ----------
    log_prob, old_log_prob, advantage, mask
        ``[B, T]``.
    clip_low, clip_high
        ε_lo and ε_hi; DAPO's are 0.2 and 0.28.
    dual_clip
        c, above 1, e.g. 3: where A < 0 the loss is at most −cA (Ye et al. 2020). No such bound
        by default.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    return _clipped(log_ratio, log_ratio, advantage, mask, (clip_low, clip_high), dual_clip)


def ppo_kl(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor, *, beta: float
) -> TokenLoss:
    """Compute −ρA + β·KL(π_old ‖ π), ``[B, T]``.

    :func:`trainers.algorithms.ppo_losses.adapt_kl_beta` changes β after an update, by the mean of
    the metric ``approximate_kl``.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    loss = -log_ratio.exp() * advantage + beta * kl_estimate(-log_ratio, "k3")
    return TokenLoss(loss, _measured(log_ratio, mask))


def gspo(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> TokenLoss:
    """Compute the clipped loss with one ρ a row, of the mean log-ratio (Zheng et al. 2025).

    The gradient of the row's ρ is given to its tokens as the paper's token variant does: equal to
    the row's own where a row has one advantage, and meant where tokens have theirs. ``[B, T]``.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    mean = log_ratio.sum(1, keepdim=True) / mask.bool().sum(1, keepdim=True).clamp(min=1)
    # The number is the row's; the gradient is each token's own.
    of_row = mean.detach() + log_ratio - log_ratio.detach()
    return _clipped(of_row, log_ratio, advantage, mask, (clip_low, clip_high), None)


def cispo(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    max_ratio: float = 5.0,
) -> TokenLoss:
    """Compute −min(ρ, ε_hi)·A·log π, no gradient through ρ (MiniMax 2025), ``[B, T]``.

    Every token keeps its gradient; only its weight has the bound ``max_ratio``, ε_hi.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    ratio = log_ratio.detach().exp()
    (log_prob,) = _shown(mask, log_prob)
    metrics = _measured(log_ratio, mask)
    metrics["clip_fraction_high"] = (ratio > max_ratio).to(ratio.dtype)
    return TokenLoss(-ratio.clamp(max=max_ratio) * advantage * log_prob, metrics)


def kl_loss(
    log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor, *, kind: KlEstimator = "k2"
) -> TokenLoss:
    """Compute a divergence from a reference as a loss, ``[B, T]``.

    See :func:`trainers.algorithms.kl.kl_estimate` for what each kind's gradient is.
    """
    log_prob, reference = _shown(mask, log_prob, ref_log_prob)
    log_ratio = log_prob - reference.detach()
    return TokenLoss(kl_estimate(log_ratio, kind), {"kl": log_ratio.detach()})


def _clipped(
    bounded: Tensor,
    log_ratio: Tensor,
    advantage: Tensor,
    mask: Tensor,
    clip: tuple[float, float],
    dual_clip: float | None,
) -> TokenLoss:
    ratio, (low, high) = bounded.exp(), clip
    loss = clipped_surrogate(ratio, advantage, clip_low=low, clip_high=high)
    metrics = _measured(log_ratio, mask)
    below = (ratio < 1 - low) & (advantage < 0)
    above = (ratio > 1 + high) & (advantage > 0)
    if dual_clip is not None:
        bound = -dual_clip * advantage
        metrics["clip_fraction_dual"] = ((advantage < 0) & (loss > bound)).to(ratio.dtype)
        loss = torch.where(advantage < 0, torch.minimum(loss, bound), loss)
    metrics["clip_fraction_low"] = below.to(ratio.dtype)
    metrics["clip_fraction_high"] = above.to(ratio.dtype)
    return TokenLoss(loss, metrics)


def _measured(log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
    log_ratio = log_ratio.detach()
    return {
        "ratio": torch.where(mask.bool(), log_ratio.exp(), 0.0),
        "approximate_kl": kl_estimate(-log_ratio, "k3"),
    }


def _log_ratio(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log ρ and A, both 0 where the mask is."""
    new, old, advantage = _shown(mask, log_prob, old_log_prob, advantage)
    return (new - old.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), advantage.detach()


def _shown(mask: Tensor, *given: Tensor) -> list[Tensor]:
    """Return what the mask shows, 0 elsewhere: hidden NaN would spoil the gradient."""
    return [torch.where(mask.bool(), values, 0.0) for values in given]
