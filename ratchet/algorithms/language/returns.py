"""Returns and advantages of tokens; tokens outside the mask are skipped.

Values and advantages are carried through tokens outside the mask unchanged: they are computed on
rows that contain only the tokens in the mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.algorithms.advantages import gae, n_step_returns, reward_to_go
from ratchet.algorithms.masks import masked_whiten


class TokenAdvantages(NamedTuple):
    """Result of :func:`token_gae`, ``[B, T]`` each and 0 outside the mask."""

    advantage: Tensor
    returns: Tensor
    """``advantage + value``: the target of the critic."""


class _PackedTokens:
    """The tokens in a mask, packed to the left: ``[B, S, 1]`` with the longest row's S."""

    def __init__(self, mask: Tensor) -> None:
        in_mask = mask.bool()
        self._shape = in_mask.shape
        longest = max(1, int(in_mask.sum(1).max())) if in_mask.numel() else 1
        # A stable sort moves tokens in the mask to the front, in their order.
        self._order = torch.argsort(~in_mask, dim=1, stable=True)[:, :longest]
        self.present = in_mask.gather(1, self._order).unsqueeze(-1)
        following = torch.zeros_like(self.present)
        following[:, :-1] = self.present[:, 1:]
        self.last = ~following
        """The last token in the mask, and the padding after it."""

    def take(self, values: Tensor) -> Tensor:
        return torch.where(self.present, values.gather(1, self._order).unsqueeze(-1), 0.0)

    def put_back(self, values: Tensor) -> Tensor:
        masked = torch.where(self.present, values, 0.0).squeeze(-1)
        return torch.zeros(self._shape, dtype=masked.dtype, device=masked.device).scatter(
            1, self._order, masked
        )

    def at_end(self, final_value: Tensor | None, like: Tensor) -> Tensor:
        if final_value is None:
            return torch.zeros_like(like)
        return final_value.to(like).view(-1, 1, 1).expand_as(like)


def token_gae(
    reward: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    lmbda: float = 0.95,
    final_value: Tensor | None = None,
) -> TokenAdvantages:
    """Estimate advantages of tokens (:func:`ratchet.algorithms.advantages.gae`).

    Parameters
    ----------
    reward, value
        ``[B, T]``; read where the mask is 1.
    mask
        ``[B, T]``.
    gamma, lmbda
        Discount of rewards and of δ, for each token in the mask.
    final_value
        ``[B]``: value after the last token of a truncated row; 0 by default.
    """
    packed = _PackedTokens(mask)
    rewards, values = packed.take(reward), packed.take(value)
    everywhere = torch.ones_like(packed.present)
    estimate = gae(
        rewards,
        values,
        everywhere,
        packed.last,
        gamma=gamma,
        lmbda=lmbda,
        terminated=~everywhere,
        final_value=packed.at_end(final_value, rewards),
        final_known=everywhere,
    )
    return TokenAdvantages(
        packed.put_back(estimate.advantage), packed.put_back(estimate.value_target)
    )


def token_n_step_returns(
    reward: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    num_steps: int,
    gamma: float = 1.0,
    final_value: Tensor | None = None,
) -> Tensor:
    """Sum each token's next ``num_steps`` rewards, then bootstrap from the token after them.

    Shapes as for :func:`token_gae`; with values of 0, plain sums of at most ``num_steps`` rewards.
    """
    packed = _PackedTokens(mask)
    rewards, values = packed.take(reward), packed.take(value)
    following = torch.cat([values[:, 1:], values[:, -1:]], dim=1)
    following = torch.where(packed.last, packed.at_end(final_value, values), following)
    returns = n_step_returns(
        rewards,
        following,
        packed.last,
        num_steps=num_steps,
        gamma=gamma,
        terminated=torch.zeros_like(packed.last),
    )
    return packed.put_back(returns)


def token_reward_to_go(reward: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Sum each token's reward and the discounted ones of later tokens in the mask; ``[B, T]``."""
    packed = _PackedTokens(mask)
    return packed.put_back(reward_to_go(packed.take(reward), packed.last, gamma=gamma))


def whiten_tokens(values: Tensor, mask: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Scale the values in the mask of a batch to mean 0 and population deviation 1.

    Call it once for a batch, before it is split. ``[B, T]``, 0 outside the mask.
    """
    return masked_whiten(values.flatten(), mask.bool().flatten(), eps=eps).view_as(values)


def spread_over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Assign a row's value to its tokens in the mask: ``[B]`` → ``[B, T]``, 0 elsewhere."""
    return torch.where(mask.bool(), values.unsqueeze(1), 0.0)
