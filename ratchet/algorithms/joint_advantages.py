"""How each agent fares by what the others do: advantages in every step, whoever acts.

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
    """What :func:`joint_advantages` computes, ``[E, T, A]`` each."""

    advantage: Tensor
    """How much better than expected the step went for the agent; 0 where that is not known."""
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
    """Subtract from each agent's return a baseline that no action of the step could change.

    Where the agent acts it is the critic's value. Where it does not, its value was never asked
    for, and the backed-up one of :func:`ratchet.algorithms.advantages.gae` knows what the others
    have just done, so that it would take away what is to be measured. The baseline is then what
    the critic last said in the episode, less the rewards since, or before it has said anything
    the mean of the other episodes' returns at the same step.

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
        int64 ``[E, T]``: how many steps of the episode went before.
    """
    carried, said = _carry_values(reward, value, acting, done, gamma)
    elsewhere = known & ~said
    baseline = torch.where(said, carried, _mean_of_others(value_target, elsewhere, step))
    return JointAdvantages(torch.where(known, value_target - baseline, 0.0), known)


def _carry_values(
    reward: Tensor, value: Tensor, acting: Tensor, done: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Return the last value in the episode as of each step, and whether there is one."""
    last, there = torch.zeros_like(reward[:, 0]), torch.zeros_like(acting[:, 0])
    values, said = [], []
    for t in range(reward.shape[1]):
        now = torch.where(acting[:, t], value[:, t], last)
        there = there | acting[:, t]
        values.append(now)
        said.append(there)
        last = (now - reward[:, t]) / gamma if gamma else torch.zeros_like(now)
        there = there & ~done[:, t]
    return torch.stack(values, 1), torch.stack(said, 1)


def _mean_of_others(returns: Tensor, mask: Tensor, step: Tensor) -> Tensor:
    """Return the mean of returns over the mask at the same step, leaving each frame itself out."""
    shown = torch.where(mask, returns, 0.0).flatten(0, 1)
    counted = mask.flatten(0, 1).to(returns.dtype)
    flat = step.flatten()
    empty = returns.new_zeros(int(step.max()) + 1, returns.shape[-1])
    total = empty.index_add(0, flat, shown)[flat] - shown
    count = empty.index_add(0, flat, counted)[flat] - counted
    return (total / count.clamp(min=1)).view(returns.shape)


def normalize_joint_advantages(advantage: Tensor, own: Tensor, known: Tensor) -> Tensor:
    """Bring advantages to the scale that whitening gives an agent's own ones.

    Own frames are whitened as by :func:`ratchet.algorithms.masks.masked_whiten`. Others are
    centred by themselves and divided by the same deviation, so that all of an agent's loss is
    scaled alike; nothing is learned from an agent whose own advantages don't vary.

    Parameters
    ----------
    advantage
        ``[B, A]``.
    own, known
        Boolean ``[B, A]``: the agent learns from the frame; its advantage is known there.
    """
    others = known & ~own
    deviation = masked_variance(advantage, own, 0).sqrt()
    mean = torch.where(own, masked_mean(advantage, own, 0), masked_mean(advantage, others, 0))
    scaled = (advantage - mean) / (deviation + 1e-6)
    return torch.where((own | others) & (deviation > 1e-5), scaled, 0.0)


def known_consequences(
    learns: Tensor, acting: Tensor, terminated: Tensor, cut: Tensor, final_known: Tensor
) -> Tensor:
    """Say in which steps an agent's λ-return can be trusted, whoever acts: bool ``[E, T, A]``.

    Parameters
    ----------
    learns
        The agent acts, and what came of it is known (:class:`.advantages.Advantages`).
    acting
        The agent acts.
    terminated
        The agent's episode ends with the step, and nothing follows.
    cut
        What follows the step is not in the batch, but is worth something.
    final_known
        Where it is cut, whether its worth is known.
    """
    following = torch.zeros_like(learns[:, 0])
    columns = []
    for t in reversed(range(learns.shape[1])):
        after = torch.where(cut[:, t], final_known[:, t], following) | terminated[:, t]
        columns.append(torch.where(acting[:, t], learns[:, t], after))
        following = acting[:, t] | columns[-1]
    return torch.stack(columns[::-1], 1)
