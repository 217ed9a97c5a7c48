"""The losses of clipped PPO and their derivatives in one operation; B frames, A agents.

What :mod:`ppo_losses`, :mod:`critic_losses` and :mod:`masks` compute one after the other, with a
third of the operations: on small minibatches these take longer than the networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.fused import differentiable_gradients
from trainers.algorithms.critic_losses import CriticLossType, critic_loss
from trainers.algorithms.masks import masked_mean, masked_whiten
from trainers.algorithms.ppo_losses import clipped_policy_loss

_WHITEN_EPSILON = 1e-6


@dataclass(frozen=True)
class ClippedPpo:
    """What the losses depend on beside the frames.

    Attributes
    ----------
    clip_epsilon
        ε: how far the ratio of probabilities may leave 1.
    entropy_coef, critic_coef
        Weights of the entropy and of the critic's loss.
    normalize_advantage
        Whether to whiten advantages per agent.
    loss_critic_type
        How far a value is from its target.
    clip_value
        If given, how far a value may move from the rollout's without a penalty on the rest.
    """

    clip_epsilon: float
    entropy_coef: float
    critic_coef: float
    normalize_advantage: bool
    loss_critic_type: CriticLossType
    clip_value: float | None


class Sampled(NamedTuple):
    """What is known of the frames from their rollout, ``[B, A]`` each.

    ``mask`` is boolean: whose frames count.
    """

    log_prob: Tensor
    advantage: Tensor
    value: Tensor
    value_target: Tensor
    mask: Tensor


class FusedLosses(NamedTuple):
    """The losses, scalars, of which gradients can be taken; and what is measured, ``[A]`` each."""

    objective: Tensor
    critic: Tensor
    entropy: Tensor
    metrics: Tensor
    """``[6, A]``: policy loss, critic loss, entropy, KL, clip fraction, effective sample size."""


METRICS = (
    "policy_loss",
    "critic_loss",
    "entropy",
    "kl",
    "clip_fraction",
    "effective_sample_size",
)


def clipped_ppo_losses(
    log_prob: Tensor, entropy: Tensor, value: Tensor, sampled: Sampled, options: ClippedPpo
) -> FusedLosses:
    """Compute the losses of clipped PPO.

    Parameters
    ----------
    log_prob, entropy, value
        ``[B, A]``: what the agents make of the frames now.
    sampled
        What they made of them in the rollout, and what came of it.
    options
        Coefficients.
    """
    return FusedLosses(*_Losses.apply(log_prob, entropy, value, sampled, options))  # type: ignore[no-untyped-call]


def plain_losses(
    sampled: Sampled, options: ClippedPpo, log_prob: Tensor, entropy: Tensor, value: Tensor
) -> Tensor:
    """Compute the three losses, ``[3]``, with ordinary operations."""
    advantage, mask = sampled.advantage, sampled.mask
    if options.normalize_advantage:
        advantage = masked_whiten(advantage, mask, eps=_WHITEN_EPSILON)
    log_ratio = log_prob - sampled.log_prob
    policy = clipped_policy_loss(log_ratio, advantage, mask, clip_epsilon=options.clip_epsilon)
    critic = critic_loss(
        value,
        sampled.value_target,
        mask,
        kind=options.loss_critic_type,
        old_value=sampled.value,
        clip_value=options.clip_value,
    )
    spread = masked_mean(entropy, mask, 0)
    return torch.stack(
        [
            policy.sum(),
            options.critic_coef * critic.sum(),
            -options.entropy_coef * spread.sum(),
        ]
    )


class _Losses(torch.autograd.Function):
    """The same with the derivatives by log-probability, entropy and value."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        log_prob: Tensor,
        entropy: Tensor,
        value: Tensor,
        sampled: Sampled,
        options: ClippedPpo,
    ) -> tuple[Tensor, ...]:
        weight = sampled.mask.to(value.dtype)
        counts = weight.sum(0)
        mask = None if bool((counts == len(value)).all()) else sampled.mask
        weight = weight / counts.clamp_(min=1)
        advantage = _shown(sampled.advantage, mask)
        if options.normalize_advantage:
            advantage = _whiten(advantage, weight, mask)
        log_ratio = _shown(log_prob - sampled.log_prob, mask)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - options.clip_epsilon, 1 + options.clip_epsilon)
        gain, bounded = ratio * advantage, clipped * advantage
        distance, slope = _critic(value, sampled, mask, options)
        table = torch.stack(
            [
                torch.minimum(gain, bounded).neg_(),
                distance,
                _shown(entropy, mask),
                torch.expm1(log_ratio).sub_(log_ratio),
                (ratio != clipped).to(ratio.dtype),
                ratio,
                ratio.square(),
            ]
        )
        sums = table.mul_(weight).sum(1)
        sums[5].square_().div_(sums[6].clamp(min=1e-30))
        ctx.save_for_backward(
            log_prob,
            entropy,
            value,
            (gain <= bounded).to(gain.dtype).mul_(gain).mul_(weight).neg_(),
            weight * -options.entropy_coef,
            slope.mul_(weight).mul_(options.critic_coef),
        )
        ctx.sampled, ctx.options = sampled, options
        metrics = sums[:6]
        ctx.mark_non_differentiable(metrics)
        objective, critic, spread = metrics[:3].sum(1).unbind()
        return (
            objective,
            critic * options.critic_coef,
            spread * -options.entropy_coef,
            metrics,
        )

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        of_objective: Tensor,
        of_critic: Tensor,
        of_entropy: Tensor,
        _: Tensor,
    ) -> tuple[Tensor | None, ...]:
        log_prob, entropy, value, by_log_prob, by_entropy, by_value = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(plain_losses, ctx.sampled, ctx.options)
            grad = torch.stack([of_objective, of_critic, of_entropy])
            return (*differentiable_gradients(plain, (log_prob, entropy, value), grad), None, None)
        return (
            by_log_prob * of_objective,
            by_entropy * of_entropy,
            by_value * of_critic,
            None,
            None,
        )


def _shown(values: Tensor, mask: Tensor | None) -> Tensor:
    """Put 0 where the mask hides anything, NaN and infinity included; None hides nothing."""
    return values if mask is None else torch.where(mask, values, 0.0)


def _whiten(advantage: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Whiten over the frames that count."""
    centred = _shown(advantage - (weight * advantage).sum(0), mask)
    deviation = (weight * centred.square()).sum(0).sqrt_()
    return centred.div_(deviation.add_(_WHITEN_EPSILON))


def _critic(
    value: Tensor, sampled: Sampled, mask: Tensor | None, options: ClippedPpo
) -> tuple[Tensor, Tensor]:
    """Give the critic's loss and its derivative by the value, ``[B, A]``; 0 where masked."""
    value, target = _shown(value, mask), _shown(sampled.value_target, mask)
    loss, slope = _distance(value, target, options.loss_critic_type)
    if options.clip_value is None:
        return loss, slope
    old = _shown(sampled.value, mask)
    moved = (value - old).clamp(-options.clip_value, options.clip_value)
    bounded = old + moved
    other, other_slope = _distance(bounded, target, options.loss_critic_type)
    other_slope = torch.where(moved == value - old, other_slope, 0.0)
    return torch.maximum(loss, other), torch.where(loss >= other, slope, other_slope)


def _distance(value: Tensor, target: Tensor, kind: CriticLossType) -> tuple[Tensor, Tensor]:
    difference = value - target
    if kind == "smooth_l1":
        return F.smooth_l1_loss(value, target, reduction="none"), difference.clamp(-1, 1)
    if kind == "l1":
        return difference.abs(), difference.sign()
    return difference.square(), 2 * difference
