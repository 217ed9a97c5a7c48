"""Returns and advantages. Shape letters: E environments, T steps, A agents."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Advantages(NamedTuple):
    """Result of :func:`gae`, ``[E, T, A]`` each."""

    advantage: Tensor
    """Return minus value; 0 where the step's consequence is unknown."""
    value: Tensor
    """The critic's value where the agent acts, the backed-up one where it does not."""
    value_target: Tensor
    """``advantage + value``: the target of the critic."""
    learns: Tensor
    """Boolean: the agent acts, and the outcome is in the batch."""


def gae(
    reward: Tensor,
    value: Tensor,
    acting: Tensor,
    done: Tensor,
    *,
    gamma: float,
    lmbda: float,
    terminated: Tensor | None = None,
    final_value: Tensor | None = None,
    final_known: Tensor | None = None,
) -> Advantages:
    """Estimate advantages (Schulman et al. 2016) when agents don't act in every step.

    Where an agent acts, δ_t = r_t + γ(1−terminated_t)V_{t+1} − V_t. Elsewhere its value is not
    computed but defined by the following steps:
    V_t = r_t + γ(1−terminated_t)V_{t+1}, that is δ_t = 0. In both cases
    A_t = δ_t + γλ(1−done_t)A_{t+1}.

    Parameters
    ----------
    reward, value
        ``[E, T, A]``; ``value`` counts only where the agent acts.
    acting
        Boolean ``[E, T, A]``.
    done
        Boolean ``[E, T, A]``: the episode ends with this step.
    gamma, lmbda
        Discount of rewards and of δ.
    terminated
        Boolean ``[E, T, A]``: ``done``, and the value after the step is 0. ``done`` by default.
    final_value
        ``[E, T, A]``, read where the next observation is not in the batch: at steps that are
        ``done`` but not ``terminated``, and at the last step. Zero by default.
    final_known
        Boolean ``[E, T, A]``: whether ``final_value`` is available. Where it isn't, the agent's
        last action before it is excluded from learning.

    Returns
    -------
    Advantages
        Advantage, value, value target and the mask of steps to learn from.
    """
    terminated = done if terminated is None else terminated
    final_value = torch.zeros_like(value) if final_value is None else final_value
    final_known = torch.zeros_like(acting) if final_known is None else final_known
    alive, ongoing = (~terminated).to(reward.dtype), (~done).to(reward.dtype)
    cut = done & ~terminated
    cut[:, -1] |= ~done[:, -1]
    if bool(acting.all()) and bool((final_known | ~cut).all()):
        following = torch.cat([value[:, 1:], value[:, -1:]], 1)
        backed_up = reward + gamma * alive * torch.where(cut, final_value, following)
        advantage = _sum_backwards(backed_up - value, gamma * lmbda * ongoing)
        return Advantages(advantage, value, advantage + value, acting)
    next_advantage = torch.zeros_like(reward[:, 0])
    next_value, next_known = next_advantage, torch.zeros_like(acting[:, 0])
    columns: list[tuple[Tensor, ...]] = []
    for step in reversed(range(reward.shape[1])):
        next_value = torch.where(cut[:, step], final_value[:, step], next_value)
        next_known = torch.where(cut[:, step], final_known[:, step], next_known)
        known = next_known | terminated[:, step]
        backed_up = reward[:, step] + gamma * alive[:, step] * next_value
        step_value = torch.where(acting[:, step], value[:, step], backed_up)
        advantage = backed_up - step_value + gamma * lmbda * ongoing[:, step] * next_advantage
        next_advantage = torch.where(known, advantage, 0.0)
        next_value, next_known = step_value, known | acting[:, step]
        columns.append((next_advantage, step_value, acting[:, step] & known))
    stacked = [torch.stack(column[::-1], 1) for column in zip(*columns, strict=True)]
    advantage, filled, learns = stacked
    return Advantages(advantage, filled, advantage + filled, learns)


def _sum_backwards(delta: Tensor, decay: Tensor) -> Tensor:
    """Compute A_t = δ_t + d_t·A_{t+1}, of ``[E, T, A]`` each."""
    following = torch.zeros_like(delta[:, 0])
    columns = []
    steps = zip(reversed(delta.unbind(1)), reversed(decay.unbind(1)), strict=True)
    for step_delta, step_decay in steps:
        following = torch.addcmul(step_delta, step_decay, following)
        columns.append(following)
    return torch.stack(columns[::-1], 1)


def n_step_returns(
    reward: Tensor,
    next_value: Tensor,
    done: Tensor,
    *,
    num_steps: int,
    gamma: float,
    terminated: Tensor | None = None,
) -> Tensor:
    """Sum the next rewards and bootstrap from the critic after at most ``num_steps``.

    G_t = Σ_{k<m} γ^k r_{t+k} + γ^m V(s_{t+m}) with m = min(n, steps to the episode's or the
    batch's end). No bootstrap where terminated, from the final observation where truncated.

    Parameters
    ----------
    reward
        ``[E, T, A]``.
    next_value
        ``[E, T, A]``: the value of the observation after each step, the final observation of
        an episode included.
    done, terminated
        Boolean ``[E, T, A]``; ``terminated`` is ``done`` by default.
    num_steps
        n, at least 1.
    gamma
        Discount.

    Returns
    -------
    Tensor
        ``[E, T, A]``.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps: got {num_steps}, expected at least 1.")
    terminated = done if terminated is None else terminated
    bootstrap = torch.where(terminated, 0.0, next_value)
    returns = reward + gamma * bootstrap
    for _ in range(num_steps - 1):
        following = torch.cat([returns[:, 1:], next_value[:, -1:]], dim=1)
        stop = done.clone()
        stop[:, -1] = True
        returns = reward + gamma * torch.where(stop, bootstrap, following)
    return returns


def reward_to_go(reward: Tensor, done: Tensor, *, gamma: float) -> Tensor:
    """Sum rewards ``[E, T, A]`` to the episode's or batch's end: G_t = r_t + γ(1−done_t)G_{t+1}."""
    ongoing = (~done).to(reward.dtype)
    following = torch.zeros_like(reward[:, 0])
    columns = []
    for step in reversed(range(reward.shape[1])):
        following = reward[:, step] + gamma * ongoing[:, step] * following
        columns.append(following)
    return torch.stack(columns[::-1], dim=1)
