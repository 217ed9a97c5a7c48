"""Losses token by token: policies, demonstrations, preferences, values. ρ = exp(log π − log π_old).

A is the advantage; advantages and the log-probabilities of other policies carry no gradient. Log ρ
is bounded by :func:`ratchet.algorithms.kl.bounded_log_ratio` in every loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.algorithms.critic_losses import CriticLossType, clipped_distance
from ratchet.algorithms.kl import KlEstimator, bounded_log_ratio, kl_estimate
from ratchet.algorithms.language.returns import token_reward_to_go
from ratchet.algorithms.policy_losses import clipped_surrogate


class TokenLoss(NamedTuple):
    """A loss and its metrics, each ``[B, T]`` and 0 outside the mask.

    Sum the loss with the weights of the aggregation, the metrics with those of a token mean.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


def cross_entropy(log_prob: Tensor, mask: Tensor) -> TokenLoss:
    """Compute −log p of each token, ``[B, T]``; as a token mean it is −Σ m·log p / Σm.

    ``log_prob[b, t]`` is that of token t given the tokens before it: already shifted.
    """
    return TokenLoss(torch.where(mask.bool(), -log_prob, 0.0), {})


def reinforce(log_prob: Tensor, advantage: Tensor, mask: Tensor) -> TokenLoss:
    """Compute −log π·A (Williams 1992), ``[B, T]``."""
    log_prob, advantage = _masked(mask, log_prob, advantage)
    return TokenLoss(-log_prob * advantage.detach(), {})


def importance_sampling(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor
) -> TokenLoss:
    """Compute −ρA, ``[B, T]``."""
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    return TokenLoss(-log_ratio.exp() * advantage, _ratio_metrics(log_ratio, mask))


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
        c, above 1, e.g. 3. Bounds the loss of negative advantages by −cA (Ye et al. 2020). No such
        bound by default.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    return _clipped(log_ratio, log_ratio, advantage, mask, (clip_low, clip_high), dual_clip)


def ppo_kl(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor, *, beta: float
) -> TokenLoss:
    """Compute −ρA + β·KL(π_old ‖ π), ``[B, T]``.

    :func:`ratchet.algorithms.kl.adapt_kl_beta` changes β after an update, by the mean of the
    metric ``approximate_kl``.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    loss = -log_ratio.exp() * advantage + beta * kl_estimate(-log_ratio, "k3")
    return TokenLoss(loss, _ratio_metrics(log_ratio, mask))


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

    The gradient of the row's ρ is distributed over its tokens as in the paper's GSPO-token: equal
    to the row's own where a row has one advantage, and defined where tokens have different ones.
    ``[B, T]``.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    mean = log_ratio.sum(1, keepdim=True) / mask.bool().sum(1, keepdim=True).clamp(min=1)
    # The value is the row's; the gradient is each token's own.
    row_log_ratio = mean.detach() + log_ratio - log_ratio.detach()
    return _clipped(row_log_ratio, log_ratio, advantage, mask, (clip_low, clip_high), None)


def cispo(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    min_ratio: float = 0.0,
    max_ratio: float = 5.0,
) -> TokenLoss:
    """Compute −clip(ρ, ``min_ratio``, ``max_ratio``)·A·log π (MiniMax 2025, eq. 4), ``[B, T]``.

    No gradient flows through ρ: every token contributes, with a bounded weight. The paper has no
    lower bound.
    """
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, mask)
    ratio = log_ratio.detach().exp()
    (log_prob,) = _masked(mask, log_prob)
    metrics = _ratio_metrics(log_ratio, mask)
    if min_ratio > 0:
        metrics["clip_fraction_low"] = (ratio < min_ratio).to(ratio.dtype)
    metrics["clip_fraction_high"] = (ratio > max_ratio).to(ratio.dtype)
    return TokenLoss(-ratio.clamp(min_ratio, max_ratio) * advantage * log_prob, metrics)


def dro(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor, *, beta: float = 0.05
) -> TokenLoss:
    """Compute −log π·A + ½β·(log π − log π_old)² (Richemond et al. 2024), ``[B, T]``.

    The square uses the unbounded log-ratio: it is not exponentiated, and its pull towards π_old
    grows with the distance.
    """
    log_prob, old, advantage = _masked(mask, log_prob, old_log_prob, advantage)
    difference = log_prob - old.detach()
    loss = -advantage.detach() * log_prob + 0.5 * beta * difference.square()
    return TokenLoss(loss, _ratio_metrics(bounded_log_ratio(difference), mask))


def kl_loss(
    log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor, *, kind: KlEstimator = "k2"
) -> TokenLoss:
    """Compute a divergence from a reference as a loss, ``[B, T]``.

    See :func:`ratchet.algorithms.kl.kl_estimate` for the gradient of each kind.
    """
    log_prob, reference = _masked(mask, log_prob, ref_log_prob)
    log_ratio = log_prob - reference.detach()
    return TokenLoss(kl_estimate(log_ratio, kind), {"kl": log_ratio.detach()})


def value_loss(
    value: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    kind: CriticLossType = "l2",
    old_value: Tensor | None = None,
    clip_value: float | None = None,
) -> TokenLoss:
    """Compute the distance of values from their returns, ``[B, T]``.

    See :func:`ratchet.algorithms.critic_losses.clipped_distance`. The metric
    ``clip_fraction_value`` marks tokens whose value left ``old_value ± clip_value``.
    """
    value, target = _masked(mask, value, target.detach())
    if old_value is not None:
        (old_value,) = _masked(mask, old_value.detach())
    loss = clipped_distance(value, target, kind=kind, old_value=old_value, clip_value=clip_value)
    if old_value is None or clip_value is None:
        return TokenLoss(loss, {})
    left = (value.detach() - old_value).abs() > clip_value
    return TokenLoss(loss, {"clip_fraction_value": left.to(loss.dtype)})


class DpoLoss(NamedTuple):
    """Result of :func:`dpo_loss`, ``[P]`` each; only the loss carries a gradient."""

    loss: Tensor
    chosen_reward: Tensor
    """β·(log π − log π_ref) of the preferred response."""
    rejected_reward: Tensor


def dpo_loss(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> DpoLoss:
    """Compute −log σ(β·(d_chosen − d_rejected)), d = log π − log π_ref (Rafailov et al. 2023).

    Parameters
    ----------
    chosen, rejected, ref_chosen, ref_rejected
        ``[P]``: log-probabilities of complete responses, by :func:`sequence_log_prob`.
    beta
        β, the scale from differences of log-probabilities to implicit rewards.
    label_smoothing
        The probability, below ½, that a pair is labelled the wrong way round.
    """
    chosen_reward = beta * (chosen - ref_chosen.detach())
    rejected_reward = beta * (rejected - ref_rejected.detach())
    loss = preference_loss(chosen_reward - rejected_reward, label_smoothing=label_smoothing)
    return DpoLoss(loss, chosen_reward.detach(), rejected_reward.detach())


def preference_loss(margin: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Compute −(1−ε)·log σ(m) − ε·log σ(−m), m the margin of the preferred reward; any shape."""
    loss = -(1 - label_smoothing) * F.logsigmoid(margin)
    return loss - label_smoothing * F.logsigmoid(-margin)


def sequence_log_prob(log_prob: Tensor, mask: Tensor) -> Tensor:
    """Sum the log-probabilities of the tokens in the mask: ``[B, T]`` → ``[B]``."""
    return torch.where(mask.bool(), log_prob, 0.0).sum(1)


def distillation_advantages(
    log_prob: Tensor,
    teacher_log_prob: Tensor,
    mask: Tensor,
    *,
    coefficient: float = 1.0,
    gamma: float = 0.0,
) -> Tensor:
    """Compute A_t = −c·(log π − log π_teacher) of the student's own tokens, ``[B, T]``.

    Parameters
    ----------
    log_prob, teacher_log_prob, mask
        ``[B, T]``.
    coefficient
        c.
    gamma
        If above 0, A_t becomes A_t + γA_{t+1} + γ²A_{t+2} + … over the later tokens in the mask.
    """
    difference = (teacher_log_prob - log_prob).detach()
    return token_reward_to_go(coefficient * difference, mask, gamma=gamma)


def penalised_rewards(
    reward: Tensor, log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor, *, coefficient: float
) -> Tensor:
    """Compute r_t − β·(log π − log π_ref), ``[B, T]``, 0 outside the mask; no gradient."""
    penalty = kl_estimate(log_prob - ref_log_prob, "k1").detach()
    return torch.where(mask.bool(), reward - coefficient * penalty, 0.0)


def _clipped(
    used: Tensor,
    log_ratio: Tensor,
    advantage: Tensor,
    mask: Tensor,
    clip: tuple[float, float],
    dual_clip: float | None,
) -> TokenLoss:
    """Compute the clipped loss with ρ = e^``used``; metrics of ratios are of ``log_ratio``."""
    ratio, (low, high) = used.exp(), clip
    loss = clipped_surrogate(ratio, advantage, clip_low=low, clip_high=high)
    metrics = _ratio_metrics(log_ratio, mask)
    below = (ratio < 1 - low) & (advantage < 0)
    above = (ratio > 1 + high) & (advantage > 0)
    if dual_clip is not None:
        bound = -dual_clip * advantage
        metrics["clip_fraction_dual"] = ((advantage < 0) & (loss > bound)).to(ratio.dtype)
        loss = torch.where(advantage < 0, torch.minimum(loss, bound), loss)
    metrics["clip_fraction_low"] = below.to(ratio.dtype)
    metrics["clip_fraction_high"] = above.to(ratio.dtype)
    return TokenLoss(loss, metrics)


def _ratio_metrics(log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
    log_ratio = log_ratio.detach()
    return {
        "ratio": torch.where(mask.bool(), log_ratio.exp(), 0.0),
        "approximate_kl": kl_estimate(-log_ratio, "k3"),
    }


def _log_ratio(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log ρ, bounded, and A; both 0 outside the mask."""
    new, old, advantage = _masked(mask, log_prob, old_log_prob, advantage)
    return bounded_log_ratio(new - old.detach()), advantage.detach()


def _masked(mask: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return the tensors, 0 outside the mask: a NaN there would spoil the gradient."""
    return [torch.where(mask.bool(), values, 0.0) for values in tensors]
