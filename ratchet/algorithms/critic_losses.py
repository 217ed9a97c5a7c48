"""Losses of critics: distances of values from their targets. B frames, A agents."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.algorithms.masks import masked_mean, masked_variance

CriticLossType = Literal["smooth_l1", "l1", "l2"]


def distance(value: Tensor, target: Tensor, kind: CriticLossType) -> Tensor:
    """Compute the elementwise loss, of the same shape."""
    if kind == "smooth_l1":
        return F.smooth_l1_loss(value, target, reduction="none")
    if kind == "l1":
        return F.l1_loss(value, target, reduction="none")
    return F.mse_loss(value, target, reduction="none")


def clipped_distance(
    value: Tensor,
    target: Tensor,
    *,
    kind: CriticLossType,
    old_value: Tensor | None = None,
    clip_value: float | None = None,
) -> Tensor:
    """Compute the elementwise loss, at least that of the value clipped around its old one.

    Parameters
    ----------
    value, target
        Of one shape.
    kind
        The distance.
    old_value
        The value when the data were sampled; needed with ``clip_value``.
    clip_value
        Largest distance from ``old_value`` that the loss credits; unbounded by default.
    """
    loss = distance(value, target, kind)
    if clip_value is None:
        return loss
    if old_value is None:
        raise ValueError("clip_value needs old_value, the values of the rollout; got None.")
    clipped = old_value + (value - old_value).clamp(-clip_value, clip_value)
    return torch.maximum(loss, distance(clipped, target, kind))


def critic_loss(
    value: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    kind: CriticLossType = "smooth_l1",
    old_value: Tensor | None = None,
    clip_value: float | None = None,
) -> Tensor:
    """Compute the mean distance of values from their targets, per agent: ``[A]``.

    Parameters
    ----------
    value, target, mask
        ``[B, A]``; the mean is over the mask.
    old_value
        ``[B, A]``: the value when the frame was sampled; needed with ``clip_value``.
    clip_value
        If given, the larger of the losses of the value and of the value clipped to
        ``old_value ± clip_value``.
    """
    loss = clipped_distance(value, target, kind=kind, old_value=old_value, clip_value=clip_value)
    return masked_mean(loss, mask, 0)


def explained_variance(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Compute 1 − Var(target − value)/Var(target) per agent: 1 is perfect, a constant gets 0.

    ``[B, A]`` each; ``[A]``, 0 where the target does not vary.
    """
    variance = masked_variance(target, mask, 0)
    residual = masked_variance(target - value, mask, 0)
    return torch.where(variance > 1e-12, 1 - residual / variance.clamp(min=1e-12), 0.0)
