"""Log-probabilities and entropies of packed categorical factors, together, with few operations."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ratchet.agents.fused import may_fuse
from ratchet.agents.tape import Tape, Var, run_recorded

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
    if not may_fuse(logits):
        return _plain(logits, allowed, weights, actions).unbind(0)  # type: ignore[return-value]
    scores = run_recorded(
        lambda tape: [record_scores(tape, tape.leaf(logits), allowed, weights, actions)],
        lambda: [_plain(logits, allowed, weights, actions)],
    )[0]
    return cast(tuple[Tensor, Tensor], scores.unbind(0))


def _plain(logits: Tensor, allowed: Tensor, weights: Tensor, actions: Tensor) -> Tensor:
    """Return both, [2, b], with ordinary operations."""
    log_probs = masked_log_probs(logits, allowed)
    chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return (torch.stack([chosen, entropy]) * weights).sum(-1)


def record_scores(
    tape: Tape, logits: Var, allowed: Tensor, weights: Tensor, actions: Tensor
) -> Var:
    """Do the same on a tape: [2, b].

    By d log p(a) = 1[a] - p and dH = -p (log p + H) for each factor.
    """
    log_probs = masked_log_probs(logits.value, allowed)
    probs = log_probs.exp()
    entropy = (probs * log_probs).sum(-1).neg_()
    actions = actions.unsqueeze(-1)
    chosen = log_probs.gather(-1, actions).squeeze(-1)

    def back(grad: Tensor) -> None:
        of_chosen, of_entropy = (grad.unsqueeze(-1) * weights).unsqueeze(-1).unbind(0)
        out = (log_probs + entropy.unsqueeze(-1)).mul_(of_entropy).add_(of_chosen)
        logits.add_grad(out.mul_(probs).neg_().scatter_add_(-1, actions, of_chosen))

    result = Var((torch.stack([chosen, entropy]) * weights).sum(-1))
    tape.record(back, result)
    return result
