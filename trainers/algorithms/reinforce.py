"""REINFORCE (Williams 1992): weigh the log-probabilities of what was done by what came of it."""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.masks import masked_mean


def reinforce_loss(log_prob: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Compute −log π·w, per agent: ``[A]``.

    Its gradient is that of the expected return only for actions drawn from π as it is.

    Parameters
    ----------
    log_prob
        ``[B, A]``: of the action taken.
    weight
        ``[B, A]``: a return or an advantage; no gradient goes through it.
    mask
        Boolean ``[B, A]``; the mean is over it.
    """
    return masked_mean(-log_prob * weight.detach(), mask, 0)
