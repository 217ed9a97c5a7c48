"""Categorical choices without masks: log-probability and entropy, with few operations.

B frames, K independent choices, one after the other in the logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.agents.tape import Tape, Var


def plain_categorical_scores(
    logits: Tensor, actions: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Sum the log-probabilities of choices, and their entropies.

    Parameters
    ----------
    logits
        f32 [B, Σ sizes].
    actions
        i64 [B, K].
    sizes
        How many outcomes each choice has.

    Returns
    -------
    tuple[Tensor, Tensor]
        Both f32 [B, 1]; entropies in nats.
    """
    chosen, entropies = [], []
    for index, factor in enumerate(divide(logits, sizes)):
        log_probs = torch.log_softmax(factor, -1)
        chosen.append(log_probs.gather(-1, actions[:, index : index + 1]))
        entropies.append(-(log_probs.exp() * log_probs).sum(-1, keepdim=True))
    return _total(chosen), _total(entropies)


def record_categorical_scores(
    tape: Tape, logits: Var, actions: Tensor, sizes: Sequence[int]
) -> tuple[Var, Var]:
    """Do the same on a tape, by d log p(a) = 1[a] - p and dH = -p (log p + H)."""
    log_probs = [torch.log_softmax(factor, -1) for factor in divide(logits.value, sizes)]
    probs = [factor.exp() for factor in log_probs]
    entropies = [
        (p * log_p).sum(-1, keepdim=True).neg_() for p, log_p in zip(probs, log_probs, strict=True)
    ]
    taken = actions.split(1, -1)  # type: ignore[no-untyped-call] # of torch

    def back(of_chosen: Tensor | None, of_entropy: Tensor | None) -> None:
        grads = []
        for index, (p, log_p) in enumerate(zip(probs, log_probs, strict=True)):
            grad = torch.zeros_like(p)
            if of_entropy is not None:
                grad = (log_p + entropies[index]).mul_(of_entropy)
            if of_chosen is not None:
                grad.add_(of_chosen)
            grad.mul_(p).neg_()
            if of_chosen is not None:
                grad.scatter_add_(-1, taken[index], of_chosen)
            grads.append(grad)
        logits.add_grad(grads[0] if len(grads) == 1 else torch.cat(grads, -1))

    chosen = [p.gather(-1, action) for p, action in zip(log_probs, taken, strict=True)]
    outputs = (Var(_total(chosen)), Var(_total(entropies)))
    tape.record(back, *outputs)
    return outputs


def divide(logits: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Return the logits of each choice."""
    return (logits,) if len(sizes) == 1 else torch.split(logits, list(sizes), dim=-1)


def _total(columns: list[Tensor]) -> Tensor:
    return columns[0] if len(columns) == 1 else torch.cat(columns, -1).sum(-1, keepdim=True)
