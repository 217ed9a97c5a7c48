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
        Both f32 [B]; entropies in nats.
    """
    if may_fuse(logits):
        return cast(tuple[Tensor, Tensor], _Scores.apply(logits, actions))  # type: ignore[no-untyped-call]
    return _plain(logits, actions).unbind(-1)  # type: ignore[return-value]


def _plain(logits: Tensor, actions: Tensor) -> Tensor:
    """Give both, [B, 2], with ordinary operations."""
    log_probs = torch.log_softmax(logits, -1)
    entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
    return torch.cat([log_probs.gather(-1, actions), entropy], -1)


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
        entropy = (probs * log_probs).sum(-1).neg_()
        ctx.save_for_backward(logits, actions, log_probs, probs, entropy)
        return log_probs.gather(-1, actions).squeeze(-1), entropy

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        of_chosen: Tensor,
        of_entropy: Tensor,
    ) -> tuple[Tensor | None, None]:
        logits, actions, log_probs, probs, entropy = ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = torch.stack([of_chosen, of_entropy], -1)
            return differentiable_gradients(_plain, (logits, actions), grad)[0], None
        of_chosen = of_chosen.unsqueeze(-1)
        out = torch.addcmul(of_chosen, log_probs + entropy.unsqueeze(-1), of_entropy.unsqueeze(-1))
        return out.mul_(probs).neg_().scatter_add_(-1, actions, of_chosen), None
