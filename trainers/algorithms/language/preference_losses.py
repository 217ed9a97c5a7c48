"""Learning from what is known to be better: demonstrations, pairs and teachers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trainers.algorithms.language.policy_losses import TokenLoss
from trainers.algorithms.language.returns import token_reward_to_go


class DpoLoss(NamedTuple):
    """What :func:`dpo_loss` computes, ``[P]`` each; only the loss carries a gradient."""

    loss: Tensor
    chosen_reward: Tensor
    """β times how much likelier the better answer is than to the reference."""
    rejected_reward: Tensor


def cross_entropy(log_prob: Tensor, mask: Tensor) -> TokenLoss:
    """Compute −log p of each token, ``[B, T]``; as a token mean it is −Σ m·log p / Σm.

    ``log_prob[b, t]`` is of token t after those before it: they are already shifted.
    """
    return TokenLoss(torch.where(mask.bool(), -log_prob, 0.0), {})


def sequence_log_prob(log_prob: Tensor, mask: Tensor) -> Tensor:
    """Sum the shown tokens' log-probabilities: ``[B, T]`` → ``[B]``."""
    return torch.where(mask.bool(), log_prob, 0.0).sum(1)


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
        ``[P]``: log-probabilities of whole answers, by :func:`sequence_log_prob`.
    beta
        β: how much of a preference a difference of log-probabilities is.
    label_smoothing
        The probability, below ½, that a pair is the wrong way round.
    """
    chosen_reward = beta * (chosen - ref_chosen.detach())
    rejected_reward = beta * (rejected - ref_rejected.detach())
    margin = chosen_reward - rejected_reward
    wrong = label_smoothing
    loss = -(1 - wrong) * F.logsigmoid(margin) - wrong * F.logsigmoid(-margin)
    return DpoLoss(loss, chosen_reward.detach(), rejected_reward.detach())


def distillation_advantages(
    log_prob: Tensor,
    teacher_log_prob: Tensor,
    mask: Tensor,
    *,
    coefficient: float = 1.0,
    gamma: float = 0.0,
) -> Tensor:
    """Compute A_t = −c·(log π − log π_teacher) of what the student itself wrote, ``[B, T]``.

    Parameters
    ----------
    log_prob, teacher_log_prob, mask
        ``[B, T]``.
    coefficient
        c.
    gamma
        If above 0, A_t becomes A_t + γA_{t+1} + γ²A_{t+2} + … over the shown tokens after it.
    """
    difference = (teacher_log_prob - log_prob).detach()
    return token_reward_to_go(coefficient * difference, mask, gamma=gamma)
