"""Multi-head attention with a bias, for many short sequences of narrow heads on a CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def masked_attention(packed: Tensor, bias: Tensor, num_heads: int) -> Tensor:
    """Attend.

    Parameters
    ----------
    packed
        Queries, keys and values side by side, f32 [b, T, 3d].
    bias
        Added to the scores, f32 [b, T, T].
    num_heads
        Number of heads; divides d.

    Returns
    -------
    Tensor
        f32 [b, T, d].
    """
    b, t, width = packed.shape
    d_head = width // (3 * num_heads)
    query, key, value = packed.view(b, t, 3, num_heads, d_head).permute(2, 0, 3, 1, 4)
    scores = torch.matmul(query, key.transpose(-1, -2)) * (1 / math.sqrt(d_head))
    weights = torch.softmax(scores + bias.unsqueeze(1), dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).reshape(b, t, width // 3)
