"""One categorical choice without masks: log-probability and entropy, with few operations."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ratchet.agents.fused import differentiable_gradients, may_fuse


def categorical_scores(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Give the log-probabilities of choices, and the entropies.

    Parameters
    ----------
    logits
        f32 [B, S].
    actions
        i64 [B, 1].

    Returns
    -------
    tuple[Tensor, Tensor]
        Both f32 [B, 1]; entropies in nats.
    """
    if not torch.is_grad_enabled():
        log_probs = torch.log_softmax(logits, -1)
        return log_probs.gather(-1, actions), _entropy(log_probs, log_probs.exp())
    if may_fuse(logits):
        return cast(tuple[Tensor, Tensor], _Scores.apply(logits, actions))  # type: ignore[no-untyped-call]
    chosen, entropy = torch.split(_plain(logits, actions), 1, -1)
    return chosen, entropy


def _plain(logits: Tensor, actions: Tensor) -> Tensor:
    """Give both, [B, 2], with ordinary operations."""
    log_probs = torch.log_softmax(logits, -1)
    entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
    return torch.cat([log_probs.gather(-1, actions), entropy], -1)


def _entropy(log_probs: Tensor, probs: Tensor) -> Tensor:
    return (probs * log_probs).sum(-1, keepdim=True).neg_()


class _Scores(torch.autograd.Function):
    """The same, by d log p(a) = 1[a] - p and dH = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        logits: Tensor,
        actions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(logits, -1)
        probs = log_probs.exp()
        entropy = _entropy(log_probs, probs)
        ctx.save_for_backward(logits, actions, log_probs, probs, entropy)
        return log_probs.gather(-1, actions), entropy

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        of_chosen: Tensor,
        of_entropy: Tensor,
    ) -> tuple[Tensor | None, None]:
        logits, actions, log_probs, probs, entropy = ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = torch.cat([of_chosen, of_entropy], -1)
            return differentiable_gradients(_plain, (logits, actions), grad)[0], None
        out = torch.addcmul(of_chosen, log_probs + entropy, of_entropy)
        return out.mul_(probs).neg_().scatter_add_(-1, actions, of_chosen), None
