"""Losses of clipped PPO as one fused operation on a tape; B frames, A agents.

Computes the same as :mod:`policy_losses`, :mod:`critic_losses` and :mod:`masks` with a third of the
operations, which take longer than the networks on small minibatches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.tapes import Record, Tape, Var, put_gradients, run_recorded
from ratchet.algorithms.critic_losses import CriticLossType, critic_loss
from ratchet.algorithms.kl import bounded_log_ratio
from ratchet.algorithms.masks import masked_mean, masked_whiten
from ratchet.algorithms.policy_losses import clipped_policy_loss

_WHITEN_EPSILON = 1e-6


@dataclass(frozen=True)
class ClippedPpo:
    """Options of the losses.

    Attributes
    ----------
    clip_epsilon
        ε, the maximal distance of the probability ratio from 1.
    entropy_coef, critic_coef
        Weights of the entropy and of the critic's loss.
    loss_critic_type
        Distance between a value and its target.
    clip_value
        Maximal change of a value from the rollout's, as in PPO's clipped value loss; None for no
        clipping.
    """

    clip_epsilon: float
    entropy_coef: float
    critic_coef: float
    normalize_advantage: bool
    loss_critic_type: CriticLossType
    clip_value: float | None


class Sampled(NamedTuple):
    """Outputs of the rollout for the frames, ``[B, A]`` each.

    ``mask`` is boolean: the frames that count for each agent.
    """

    log_prob: Tensor
    advantage: Tensor
    value: Tensor
    value_target: Tensor
    mask: Tensor


class FusedLosses(NamedTuple):
    """Scalar losses, which are differentiable, and metrics for each agent."""

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


class Now(NamedTuple):
    """Current outputs of the agents for the frames, ``[B, A]`` each, on a tape."""

    log_prob: Var
    entropy: Var
    value: Var


def clipped_ppo_losses(
    record_now: Record,
    plain_now: Callable[[], tuple[Tensor, Tensor, Tensor]],
    sampled: Sampled,
    options: ClippedPpo,
) -> FusedLosses:
    """Compute the losses of clipped PPO.

    Parameters
    ----------
    record_now, plain_now
        Compute log-probabilities, entropies and values of the frames now, ``[B, A]``: on a tape,
        and with ordinary operations.
    """

    def plain() -> list[Tensor]:
        now = plain_now()
        losses = plain_losses(sampled, options, *now)
        return [*losses.unbind(), losses.new_zeros(len(METRICS), now[0].shape[-1])]

    return FusedLosses(*run_recorded(_recorder(record_now, sampled, options), plain))


def put_ppo_gradients(record_now: Record, sampled: Sampled, options: ClippedPpo) -> FusedLosses:
    """Put the gradients of the summed losses into the parameters, which have none yet.

    Equivalent to ``backward()`` on :func:`clipped_ppo_losses`, but without autograd.
    """
    wanted = (True, options.critic_coef != 0, options.entropy_coef != 0, False)
    return FusedLosses(*put_gradients(_recorder(record_now, sampled, options), wanted))


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


def _recorder(record_now: Record, sampled: Sampled, options: ClippedPpo) -> Record:
    return lambda tape: _record(tape, Now(*record_now(tape)), sampled, options)


def _record(tape: Tape, now: Now, sampled: Sampled, options: ClippedPpo) -> list[Var]:
    """Compute the losses, the metrics and the derivatives by the agents' outputs."""
    log_prob, entropy, value = now
    weight = sampled.mask.to(value.value.dtype)
    counts = weight.sum(0)
    mask = None if bool((counts == len(weight)).all()) else sampled.mask
    weight = weight / counts.clamp_(min=1)
    advantage = _shown(sampled.advantage, mask)
    if options.normalize_advantage:
        advantage = _whiten(advantage, weight, mask)
    shown = _shown(log_prob.value - sampled.log_prob, mask)
    log_ratio = bounded_log_ratio(shown)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - options.clip_epsilon, 1 + options.clip_epsilon)
    gain, bounded = ratio * advantage, clipped * advantage
    distance, slope = _critic(value.value, sampled, mask, options)
    table = torch.stack(
        [
            torch.minimum(gain, bounded).neg_(),
            distance,
            _shown(entropy.value, mask),
            torch.expm1(log_ratio).sub_(log_ratio),
            (ratio != clipped).to(ratio.dtype),
            ratio,
            ratio.square(),
        ]
    )
    metrics = table.mul_(weight).sum(1)
    metrics[5].square_().div_(metrics[6].clamp(min=1e-30))
    policy, critic, spread = metrics[:3].sum(1).unbind()

    def back(
        of_policy: Tensor | None, of_critic: Tensor | None, of_entropy: Tensor | None, _: object
    ) -> None:
        if of_policy is not None:
            active = ((gain <= bounded) & (log_ratio == shown)).to(gain.dtype)
            log_prob.add_grad(active.mul_(gain).mul_(weight).mul_(-of_policy))
        if of_critic is not None:
            value.add_grad(slope.mul(weight).mul_(options.critic_coef * of_critic))
        if of_entropy is not None:
            entropy.add_grad(weight * (-options.entropy_coef * of_entropy))

    outputs = [
        Var(policy),
        Var(critic * options.critic_coef),
        Var(spread * -options.entropy_coef),
        Var(metrics[:6]),
    ]
    tape.record(back, *outputs)
    return outputs


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
    """Return the critic's loss and its derivative by the value, ``[B, A]``; 0 where masked."""
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
