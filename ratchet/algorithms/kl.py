"""Log-ratios of two policies: their bound, estimates of the KL divergence, its adaptive weight.

d = log π − log π_ref of actions or tokens sampled from π (Schulman 2020).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""Bound of log-ratios before exponentiation: see :func:`bounded_log_ratio`."""


def bounded_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp log ρ to ±20, so that ρ = e^{log ρ} and its gradient are finite; any shape.

    The bound is that of verl and the frameworks derived from it. e^20 ≈ 4.9e8 is far beyond any
    ratio for which samples of the old policy are informative, and float32 overflows at e^88.7: its
    ρ = inf turns the zero gradient of a clipped action into NaN. Beyond the bound the gradient is
    0: an action whose log-ratio is 25 has no influence, instead of 7e10 times the influence of an
    on-policy action. Every formula with a ρ takes its log-ratios from here.
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def kl_estimate(log_ratio: Tensor, kind: KlEstimator) -> Tensor:
    """Compute k1 = d, k2 = ½d² or k3 = e^−d + d − 1, elementwise.

    As values, k1 and k3 are unbiased for KL(π ‖ π_ref), k2 is biased. As losses on samples from π:
    E∇k1 = 0, E∇k2 = ∇KL(π ‖ π_ref), E∇k3 = ∇KL(π_ref ‖ π). So k1 belongs in rewards, k2 in losses,
    and k3 where the reverse divergence is the objective.

    Parameters
    ----------
    log_ratio
        d, any shape. k3 reads it with the lower bound of :func:`bounded_log_ratio`; above the upper
        one k3 ≈ d − 1 is finite.
    kind
        The estimator.
    """
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    bounded = log_ratio.clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-bounded) + bounded


def adapt_kl_coefficient(
    coefficient: float, kl: float, *, target: float, horizon: float, num_samples: int
) -> float:
    """Return β·(1 + clip(KL/target − 1, ±0.2)·n/horizon) (Ziegler et al. 2019).

    Parameters
    ----------
    coefficient, kl
        The previous β, and the mean divergence measured with it.
    target, horizon
        The target divergence, and the number of samples over which β may change by a fifth.
    num_samples
        n, the number of samples of ``kl``.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * num_samples / horizon)


def adapt_kl_beta(
    beta: Tensor, kl: Tensor, *, target: float, increment: float, decrement: float
) -> Tensor:
    """Change the weight of PPO's KL penalty after a policy update (Schulman et al. 2017, §4).

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
