"""Refusal of scores and rewards that are no finite numbers, where they enter a computation.

A group's NaN or infinity would otherwise reach the advantages of other groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.errors import DataError


def check_scores(scores: Tensor, task_ids: Sequence[object], *, name: str) -> None:
    """Check that each row's score ``[B]``, or token scores ``[B, T]``, are finite."""
    bad = ~torch.isfinite(scores)
    if not bad.any():
        return
    row = int(bad.flatten(1).any(1).int().argmax() if bad.dim() > 1 else bad.int().argmax())
    task = f" (task {str(task_ids[row])!r})" if row < len(task_ids) else ""
    raise DataError(
        f"{name}: row {row}{task} has {scores[row][bad[row]].flatten()[0].item()}, expected finite"
        " numbers. Correct the evaluator or reward function, or leave the row out."
    )
