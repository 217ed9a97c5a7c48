"""Weights of tokens: aggregation of their losses, and corrections for samples of another policy."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ratchet.algorithms.kl import bounded_log_ratio, kl_estimate
from ratchet.algorithms.masks import masked_mean
from ratchet.algorithms.policy_losses import effective_sample_size

Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]
ImportanceLevel = Literal["token", "sequence"]


def token_weights(mask: Tensor, kind: Aggregation, *, constant: float | None = None) -> Tensor:
    """Compute the weight of each token's loss: float32 ``[B, T]``, 0 outside the mask.

    Weights are computed once for an optimiser batch, before it is split: the sum over micro-batches
    is then the sum over the batch, however it is split. Rows without a token in the mask do not
    count as rows.

    Parameters
    ----------
    mask
        ``[B, T]`` of the complete optimiser batch, 0 or 1.
    kind
        ``token_mean``: all tokens alike, Σ(l·m)/Σm (DAPO). ``sequence_mean_token_mean``: all
        rows alike (GRPO). ``sequence_mean_token_sum``: the mean over rows of their sums.
        ``constant``: the sum over a constant, e.g. rows × the longest response (Dr. GRPO).
    constant
        Required for ``constant``, above 0.
    """
    in_mask = mask.to(torch.float32)
    per_row = in_mask.sum(1, keepdim=True)
    num_rows = (per_row > 0).sum().clamp(min=1)
    if kind == "token_mean":
        return in_mask / per_row.sum().clamp(min=1)
    if kind == "sequence_mean_token_mean":
        return in_mask / per_row.clamp(min=1) / num_rows
    if kind == "sequence_mean_token_sum":
        return in_mask / num_rows
    if constant is None or constant <= 0:
        raise ValueError(f"constant: got {constant}, expected a number above 0.")
    return in_mask / constant


def weighted_sum(values: Tensor, weight: Tensor) -> Tensor:
    """Sum values by weight; where the weight is 0 they may be anything, NaN included. → scalar."""
    counts = weight != 0
    return (torch.where(counts, values, 0.0) * weight).sum()


class ImportanceWeights(NamedTuple):
    """Result of :func:`importance_weights`."""

    weight: Tensor
    """``[B, T]``, 0 outside the mask; no gradient."""
    metrics: dict[str, float]
    """Distance of the sampler from the trainer, and the share of capped weights."""


def importance_weights(
    log_prob: Tensor,
    sampler_log_prob: Tensor,
    mask: Tensor,
    *,
    level: ImportanceLevel = "token",
    cap: float | None = 2.0,
) -> ImportanceWeights:
    """Compute min(π/π_sampler, cap) of tokens, or of complete rows.

    The weights multiply losses or advantages of tokens whose sampler was an older policy, or the
    same one with other rounding (Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training").

    Parameters
    ----------
    log_prob, sampler_log_prob, mask
        ``[B, T]``: the trainer's before its update, and the sampler's.
    level
        ``token``: each token's ratio. ``sequence``: that of all of the row's tokens in the mask.
    cap
        The truncation; none if None.
    """
    if cap is not None and cap <= 0:
        raise ValueError(f"cap: got {cap}, expected a number above 0, or None.")
    in_mask = mask.bool()
    difference = torch.where(in_mask, log_prob - sampler_log_prob, 0.0).detach()
    log_ratio = difference
    if level == "sequence":
        log_ratio = difference.sum(1, keepdim=True).expand_as(difference)
    ratio = torch.where(in_mask, bounded_log_ratio(log_ratio).exp(), 0.0)
    capped = ratio if cap is None else ratio.clamp(max=cap)
    effective = effective_sample_size(log_ratio.reshape(-1, 1), in_mask.reshape(-1, 1))
    metrics = {
        "weight_mean": float(masked_mean(capped, in_mask)),
        "weight_max": float(capped.max()) if capped.numel() else 0.0,
        "frac_capped": float(masked_mean((ratio > capped).float(), in_mask)),
        "sampler_kl": float(masked_mean(kl_estimate(-difference, "k3"), in_mask)),
        "log_prob_difference_mean": float(masked_mean(difference.abs(), in_mask)),
        "log_prob_difference_max": float(difference.abs().max()) if difference.numel() else 0.0,
        "effective_sample_size": float(effective[0]),
    }
    return ImportanceWeights(capped, metrics)
