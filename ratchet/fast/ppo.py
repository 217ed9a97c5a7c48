"""Losses of clipped PPO with their derivatives by the agents' scores; B frames, A agents.

The same as :mod:`ratchet.algorithms.policy_losses`, :mod:`ratchet.algorithms.critic_losses` and
:mod:`ratchet.algorithms.masks`, with a third of the operations, which on small minibatches take
longer than the networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import functional as F

from ratchet.algorithms.critic_losses import CriticLossType
from ratchet.algorithms.kl import bounded_log_ratio
from ratchet.fast.dispatch import is_supported

_WHITEN_EPSILON = 1e-6
_READ = ("sample_log_prob", "advantage", "value", "value_target")
"""Names of tensor keys."""
_METRICS = (
    "policy_loss",
    "critic_loss",
    "entropy",
    "kl",
    "clip_fraction",
    "effective_sample_size",
)


class ClippedObjective(Protocol):
    """Attributes of ``ClippedPpoObjective`` that this module reads."""

    tensor_keys: dict[str, str | tuple[str, ...]]
    normalize_advantage: bool
    clip_epsilon: float
    clip_value: float | None
    loss_critic_type: CriticLossType
    critic_coef: float
    entropy_coef: float

    @property
    def is_compiled(self) -> bool:
        """Whether the plain losses are compiled."""

    def evaluate(
        self, tensordict: TensorDictBase, *, as_stored: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values with gradients, ``[B, A]`` each."""

    def learning_mask(self, tensordict: TensorDictBase) -> Tensor:
        """Return the frames that are learned from, bool ``[B, A]``."""


def clipped_ppo_gradients(
    objective: ClippedObjective,
    tensordict: TensorDictBase,
    forward_context: AbstractContextManager[object],
) -> Mapping[str, Tensor] | None:
    """Set the gradients of the losses as ``Objective.compute_gradients`` does; None if unsupported.

    Autograd differentiates the agents' scores only.
    """
    with forward_context:
        target = tensordict.get(objective.tensor_keys["value_target"])
        if objective.is_compiled or not is_supported(target):
            return None
        scores = objective.evaluate(tensordict, as_stored=True)
    frames = tensordict if tensordict.batch_dims == 1 else tensordict.reshape(-1)
    with torch.no_grad():
        losses, derivatives = _losses(objective, frames, *scores)
    reached = [
        (score, derivative)
        for score, derivative in zip(scores, derivatives, strict=True)
        if score.requires_grad and derivative is not None
    ]
    if reached:  # otherwise no learning agent acts
        torch.autograd.backward(
            [score for score, _ in reached], [derivative for _, derivative in reached]
        )
    return losses


def _losses(
    objective: ClippedObjective,
    frames: TensorDictBase,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor | None, Tensor | None]]:
    """Return losses and metrics, and the losses' derivatives by the scores, ``[B, A]`` each."""
    old_log_prob, advantage, old_value, target = (
        frames.get(objective.tensor_keys[name]) for name in _READ
    )
    learned = objective.learning_mask(frames)
    weight = learned.to(value.dtype)
    counts = weight.sum(0)
    mask = None if bool((counts == len(weight)).all()) else learned
    weight = weight / counts.clamp_(min=1)
    advantage = _masked(advantage, mask)
    if objective.normalize_advantage:
        advantage = _whiten(advantage, weight, mask)
    difference = _masked(log_prob - old_log_prob, mask)
    log_ratio = bounded_log_ratio(difference)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - objective.clip_epsilon, 1 + objective.clip_epsilon)
    gain, bounded = ratio * advantage, clipped * advantage
    distance, slope = _critic(objective, value, old_value, target, mask)
    table = torch.stack(
        [
            torch.minimum(gain, bounded).neg_(),
            distance,
            _masked(entropy, mask),
            torch.expm1(log_ratio).sub_(log_ratio),
            (ratio != clipped).to(ratio.dtype),
            ratio,
            ratio.square(),
        ]
    )
    metrics = table.mul_(weight).sum(1)
    metrics[5].square_().div_(metrics[6].clamp(min=1e-30))
    policy, critic, spread = metrics[:3].sum(1).unbind()
    losses = {
        "loss_objective": policy,
        "loss_critic": critic * objective.critic_coef,
        "loss_entropy": spread * -objective.entropy_coef,
    }
    active = ((gain <= bounded) & (log_ratio == difference)).to(gain.dtype)
    by_log_prob = active.mul_(gain).mul_(weight).neg_()
    by_entropy = weight * -objective.entropy_coef if objective.entropy_coef else None
    by_value = slope.mul(weight).mul_(objective.critic_coef) if objective.critic_coef else None
    named = dict(zip(_METRICS, metrics[:6].unbind(), strict=True))
    return losses | named, (by_log_prob, by_entropy, by_value)


def _masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Put 0 where the mask hides anything, NaN and infinity included; None hides nothing."""
    return values if mask is None else torch.where(mask, values, 0.0)


def _whiten(advantage: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Whiten over the frames that count."""
    centred = _masked(advantage - (weight * advantage).sum(0), mask)
    deviation = (weight * centred.square()).sum(0).sqrt_()
    return centred.div_(deviation.add_(_WHITEN_EPSILON))


def _critic(
    objective: ClippedObjective, value: Tensor, old: Tensor, target: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the critic's loss and its derivative by the value, ``[B, A]``; 0 where masked."""
    value, target, kind = _masked(value, mask), _masked(target, mask), objective.loss_critic_type
    loss, slope = _distance(value, target, kind)
    if objective.clip_value is None:
        return loss, slope
    old = _masked(old, mask)
    moved = (value - old).clamp(-objective.clip_value, objective.clip_value)
    other, other_slope = _distance(old + moved, target, kind)
    other_slope = torch.where(moved == value - old, other_slope, 0.0)
    return torch.maximum(loss, other), torch.where(loss >= other, slope, other_slope)


def _distance(value: Tensor, target: Tensor, kind: CriticLossType) -> tuple[Tensor, Tensor]:
    difference = value - target
    if kind == "smooth_l1":
        return F.smooth_l1_loss(value, target, reduction="none"), difference.clamp(-1, 1)
    if kind == "l1":
        return difference.abs(), difference.sign()
    return difference.square(), 2 * difference
