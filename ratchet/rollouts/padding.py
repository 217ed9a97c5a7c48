"""Rows of tokens padded to one length. The mask marks valid tokens, never a token's id."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import DataError

Truncation = Literal["left", "right", "error"]
"""Which end of a row that is too long is truncated, or an error."""


def compute_position_id_with_mask(mask: Tensor) -> Tensor:
    """Number the valid tokens: the cumulative mask − 1, at least 0; int64 ``[..., T]``."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def pad_rows(
    rows: Sequence[Sequence[float]],
    pad_value: float,
    *,
    dtype: torch.dtype,
    length: int | None = None,
    left_pad: bool = False,
    truncation: Truncation = "error",
) -> Tensor:
    """Create one tensor ``[B, length]`` of rows of different lengths.

    Parameters
    ----------
    rows
        B rows of numbers.
    pad_value
        The value of padding.
    dtype
        The tensor's.
    length
        The length of the longest row by default, at least 1.
    left_pad
        Whether padding is at the start of rows instead of the end.
    truncation
        Which end of a row that is too long is truncated.
    """
    longest = max((len(row) for row in rows), default=0)
    width = checked_width(max(1, longest) if length is None else length, longest, truncation)
    if longest > width:
        cut = slice(-width, None) if truncation == "left" else slice(width)
        rows = [row[cut] for row in rows]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))[:, None]
    column = np.arange(width)
    is_filled = column >= width - lengths if left_pad else column < lengths
    kind = np.int64 if dtype == torch.int64 else np.float64
    padded = np.full((len(rows), width), pad_value, kind)
    padded[is_filled] = np.fromiter(chain.from_iterable(rows), kind, int(lengths.sum()))
    return torch.from_numpy(padded).to(dtype)


def scores_of_tokens(rewards: Tensor, loss_mask: Tensor) -> Tensor:
    """Place rewards [B] at the last token of each row's mask [B, T], 0 elsewhere: float32[B, T]."""
    mask = loss_mask.bool()
    position = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, position, -1).amax(1, keepdim=True)
    return torch.where(position == last, rewards.to(mask.device)[:, None], 0.0).float()


def checked_width(width: int, longest: int, truncation: Truncation) -> int:
    """Return a valid width of padded rows; refuse rows that are longer and may not be truncated."""
    if width < 1:
        raise DataError(f"length: got {width}, expected at least 1.")
    if longest > width and truncation == "error":
        raise DataError(
            f"padding: got a row of {longest} tokens, expected at most {width}. Make the rows"
            " shorter, or say which end may be cut: truncation='left' or 'right'."
        )
    return width
