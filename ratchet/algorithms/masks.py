"""Means, variances and whitening over masks: only values in the mask count."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Average the values in the mask; 0 where it is empty.

    Parameters
    ----------
    values
        Any shape; values outside the mask may be anything, NaN and infinity included.
    mask
        Boolean, same shape.
    dim
        The dimensions to average over, all of them by default.

    Returns
    -------
    Tensor
        ``values`` without ``dim``.
    """
    masked = torch.where(mask, values, torch.zeros_like(values))
    if dim is None:
        return masked.sum() / mask.sum().clamp(min=1)
    return masked.sum(dim) / mask.sum(dim).clamp(min=1)


def masked_variance(
    values: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None
) -> Tensor:
    """Compute the population variance of the values in the mask (shapes as above)."""
    mean = masked_mean(values, mask, dim)
    if dim is not None:
        axes = (dim,) if isinstance(dim, int) else dim
        for axis in sorted(axis % values.dim() for axis in axes):
            mean = mean.unsqueeze(axis)
    return masked_mean((values - mean) ** 2, mask, dim)


def masked_whiten(values: Tensor, mask: Tensor, dim: int = 0, eps: float = 1e-6) -> Tensor:
    """Scale the values in the mask to mean 0 and population deviation 1 along ``dim``.

    Parameters
    ----------
    values
        Any shape, e.g. ``[B, A]`` with ``dim=0``: each agent separately.
    mask
        Boolean, same shape.
    dim
        The dimension to whiten over.
    eps
        Added to the deviation.

    Returns
    -------
    Tensor
        Same shape; 0 outside the mask, and 0 where the mask has only one value.
    """
    masked = torch.where(mask, values, torch.zeros_like(values))
    count = mask.sum(dim, keepdim=True).clamp(min=1)
    centred = torch.where(mask, masked - masked.sum(dim, keepdim=True) / count, 0.0)
    deviation = (centred.square().sum(dim, keepdim=True) / count).sqrt()
    return centred / (deviation + eps)
