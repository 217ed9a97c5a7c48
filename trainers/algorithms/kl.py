"""Estimates of the Kullback–Leibler divergence from samples (Schulman 2020), and its weight.

d = log π − log π_ref of what was sampled from π.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(log_ratio: Tensor, kind: KlEstimator) -> Tensor:
    """Compute k1 = d, k2 = ½d² or k3 = e^−d + d − 1, elementwise.

    As values, k1 and k3 are unbiased for KL(π ‖ π_ref), k2 is not. As losses on samples from π it
    is otherwise: E∇k1 = 0, E∇k2 = ∇KL(π ‖ π_ref), E∇k3 = ∇KL(π_ref ‖ π). So k1 belongs into
    rewards, k2 into losses, and k3 where the reverse divergence is meant.

    Parameters
    ----------
    log_ratio
        d, any shape.
    kind
        Which estimate.
    """
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    return torch.expm1(-log_ratio) + log_ratio


def adapt_kl_coefficient(
    coefficient: float, kl: float, *, target: float, horizon: float, num_samples: int
) -> float:
    """Return β·(1 + clip(KL/target − 1, ±0.2)·n/horizon) (Ziegler et al. 2019).

    Parameters
    ----------
    coefficient, kl
        β as it was, and the mean divergence that it led to.
    target, horizon
        The divergence that is wanted; over how many samples β may change by a fifth.
    num_samples
        n, how many samples ``kl`` is of.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * num_samples / horizon)
