"""How losses of tokens become one: four weightings, each over the whole optimiser batch.

The weights are computed once, before the batch is divided: the sum over micro-batches is then the
sum over the batch, however it is divided.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]


def token_weights(mask: Tensor, kind: Aggregation, *, constant: float | None = None) -> Tensor:
    """Compute what each token's loss weighs: float32 ``[B, T]``, 0 where the mask is.

    Rows of which the mask shows nothing don't count as rows.

    Parameters
    ----------
    mask
        ``[B, T]`` of the whole optimiser batch, 0 or 1.
    kind
        ``token_mean``: every token alike, Σ(l·m)/Σm (DAPO). ``sequence_mean_token_mean``: every
        row alike (GRPO). ``sequence_mean_token_sum``: the mean over rows of their sums.
        ``constant``: the sum over a constant, e.g. rows × the longest answer (Dr. GRPO).
    constant
        Needed for ``constant``, above 0.

    Raises
    ------
    ValueError
        If the constant is missing, or isn't above 0.
    """
    shown = mask.to(torch.float32)
    per_row = shown.sum(1, keepdim=True)
    num_rows = (per_row > 0).sum().clamp(min=1)
    if kind == "token_mean":
        return shown / per_row.sum().clamp(min=1)
    if kind == "sequence_mean_token_mean":
        return shown / per_row.clamp(min=1) / num_rows
    if kind == "sequence_mean_token_sum":
        return shown / num_rows
    if constant is None or constant <= 0:
        raise ValueError(f"constant: got {constant}, expected a number above 0.")
    return shown / constant


def weighted_sum(values: Tensor, weight: Tensor) -> Tensor:
    """Sum what weighs anything; elsewhere ``values`` may be anything, NaN included. → scalar."""
    counts = weight != 0
    return (torch.where(counts, values, 0.0) * weight).sum()
