"""Log-probabilities and entropies of packed categorical factors, together, with few operations."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ratchet.agents.fused import differentiable_gradients, may_fuse

MASKED_LOGIT = -1e9
"""Stands for minus infinity where gradients flow: its probability is exactly 0 in f32."""


def masked_log_probs(logits: Tensor, allowed: Tensor) -> Tensor:
    """Normalise over what is allowed: f32 [b, F, S], about -1e9 elsewhere."""
    return torch.log_softmax(logits.masked_fill(~allowed, MASKED_LOGIT), dim=-1)


def log_prob_and_entropy(
    logits: Tensor, allowed: Tensor, weights: Tensor, actions: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum log-probabilities of actions, and entropies, over factors.

    Parameters
    ----------
    logits
        f32 [b, F, S].
    allowed
        bool [b, F, S].
    weights
        1 for factors that count, else 0, f32 [b, F].
    actions
        i64 [b, F].

    Returns
    -------
    tuple[Tensor, Tensor]
        Both f32 [b].
    """
    if may_fuse(logits):
        scores = _Scores.apply(logits, allowed, weights, actions)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, Tensor], scores.unbind(1))
    return _plain(logits, allowed, weights, actions).unbind(1)  # type: ignore[return-value]


def _plain(logits: Tensor, allowed: Tensor, weights: Tensor, actions: Tensor) -> Tensor:
    """Give both, [b, 2], with ordinary operations."""
    log_probs = masked_log_probs(logits, allowed)
    chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return (torch.stack([chosen, entropy], dim=1) * weights.unsqueeze(1)).sum(-1)


class _Scores(torch.autograd.Function):
    """The same, by d log p(a) = 1[a] - p and dH = -p (log p + H) for each factor."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        logits: Tensor,
        allowed: Tensor,
        weights: Tensor,
        actions: Tensor,
    ) -> Tensor:
        log_probs = masked_log_probs(logits, allowed)
        probs = log_probs.exp()
        entropy = (probs * log_probs).sum(-1).neg_()
        ctx.save_for_backward(logits, allowed, weights, actions, log_probs, probs, entropy)
        chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return (torch.stack([chosen, entropy], dim=1) * weights.unsqueeze(1)).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        logits, allowed, weights, actions, log_probs, probs, entropy = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(_plain, (logits, allowed, weights, actions), grad)
        per_factor = grad.unsqueeze(-1) * weights.unsqueeze(1)  # [b, 2, F]
        of_chosen, of_entropy = per_factor.unsqueeze(-1).unbind(1)
        out = (log_probs + entropy.unsqueeze(-1)).mul_(of_entropy).add_(of_chosen)
        out.mul_(probs).neg_().scatter_add_(-1, actions.unsqueeze(-1), of_chosen)
        return out, None, None, None
