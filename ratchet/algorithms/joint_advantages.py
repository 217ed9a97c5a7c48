"""Advantages of each agent in every step, including steps in which only others act.

Opponent shaping needs the gradient of an agent's loss with respect to another's parameters, hence
an advantage of the one for the actions of the other. Shape letters: E environments, T steps,
A agents.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.algorithms.masks import masked_mean, masked_variance


class JointAdvantages(NamedTuple):
    """Result of :func:`joint_advantages`, ``[E, T, A]`` each."""

    advantage: Tensor
    """Return minus baseline; 0 where it is unknown."""
    known: Tensor
    """Boolean."""


def joint_advantages(
    reward: Tensor,
    value: Tensor,
    value_target: Tensor,
    acting: Tensor,
    known: Tensor,
    done: Tensor,
    *,
    step: Tensor,
    gamma: float,
) -> JointAdvantages:
    """Subtract from each agent's return a baseline that is independent of the step's actions.

    Where the agent acts, the baseline is the critic's value. Elsewhere its value was not computed,
    and the backed-up one of :func:`ratchet.algorithms.advantages.gae` depends on the others' last
    actions, so that it would cancel the effect to measure. The baseline is then the critic's last
    value in the episode minus the rewards since, or, before its first value, the mean of the other
    episodes' returns at the same step.

    Parameters
    ----------
    reward
        ``[E, T, A]``.
    value, value_target
        ``[E, T, A]``: the critic's value where the agent acts, and the λ-return in every step.
    acting, known, done
        Boolean ``[E, T, A]``: the agent acts; ``value_target`` can be trusted; the agent's
        episode ends with this step.
    step
        int64 ``[E, T]``: the number of earlier steps of the episode.
    """
    carried, has_value = _carry_values(reward, value, acting, done, gamma)
    without_value = known & ~has_value
    baseline = torch.where(has_value, carried, _mean_of_others(value_target, without_value, step))
    return JointAdvantages(torch.where(known, value_target - baseline, 0.0), known)


def _carry_values(
    reward: Tensor, value: Tensor, acting: Tensor, done: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Return the episode's last value up to each step, and whether one exists."""
    last, there = torch.zeros_like(reward[:, 0]), torch.zeros_like(acting[:, 0])
    values, has_value = [], []
    for t in range(reward.shape[1]):
        now = torch.where(acting[:, t], value[:, t], last)
        there = there | acting[:, t]
        values.append(now)
        has_value.append(there)
        last = (now - reward[:, t]) / gamma if gamma else torch.zeros_like(now)
        there = there & ~done[:, t]
    return torch.stack(values, 1), torch.stack(has_value, 1)


def _mean_of_others(returns: Tensor, mask: Tensor, step: Tensor) -> Tensor:
    """Return the mean of returns over the mask at the same step, excluding the frame itself."""
    masked_returns = torch.where(mask, returns, 0.0).flatten(0, 1)
    counted = mask.flatten(0, 1).to(returns.dtype)
    flat = step.flatten()
    empty = returns.new_zeros(int(step.max()) + 1, returns.shape[-1])
    total = empty.index_add(0, flat, masked_returns)[flat] - masked_returns
    count = empty.index_add(0, flat, counted)[flat] - counted
    return (total / count.clamp(min=1)).view(returns.shape)


def normalize_joint_advantages(advantage: Tensor, learns: Tensor, known: Tensor) -> Tensor:
    """Scale advantages as whitening scales an agent's own ones.

    Own frames are whitened as by :func:`ratchet.algorithms.masks.masked_whiten`. Others are
    centred separately and divided by the same deviation, so that all terms of an agent's loss have
    one scale; the result is 0 for an agent whose own advantages don't vary.

    Parameters
    ----------
    advantage
        ``[B, A]``.
    learns, known
        Boolean ``[B, A]``: the agent learns from the frame; its advantage there is available.
    """
    others = known & ~learns
    deviation = masked_variance(advantage, learns, 0).sqrt()
    mean = torch.where(learns, masked_mean(advantage, learns, 0), masked_mean(advantage, others, 0))
    scaled = (advantage - mean) / (deviation + 1e-6)
    return torch.where((learns | others) & (deviation > 1e-5), scaled, 0.0)


def known_consequences(
    learns: Tensor, acting: Tensor, terminated: Tensor, cut: Tensor, final_known: Tensor
) -> Tensor:
    """Return the steps in which an agent's λ-return is reliable: bool ``[E, T, A]``.

    Parameters
    ----------
    learns
        The agent acts, and the outcome is in the batch (:class:`.advantages.Advantages`).
    acting
        The agent acts.
    terminated
        The agent's episode ends with the step; the value after it is 0.
    cut
        The next observation is not in the batch, but has a value.
    final_known
        Whether that value is available.
    """
    following = torch.zeros_like(learns[:, 0])
    columns = []
    for t in reversed(range(learns.shape[1])):
        after = torch.where(cut[:, t], final_known[:, t], following) | terminated[:, t]
        columns.append(torch.where(acting[:, t], learns[:, t], after))
        following = acting[:, t] | columns[-1]
    return torch.stack(columns[::-1], 1)
