"""Prefix sharing: rows with a common prefix, such as one task's completions, read it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ratchet.models.llama import PlainLlama

_PAYS = 2  # mean rows per prefix; below, copying costs more than it saves


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Rows split into a shared prefix and the rest.

    Parameters
    ----------
    prompts
        int[U, P], the distinct prefixes, padded on the right.
    of_row
        int[B], each row's prefix.
    lengths
        int[B], the length of that prefix.
    rest
        int[B, A], the remaining tokens, padded on the right.
    chosen
        bool[B, A], the chosen positions in ``rest``.
    """

    prompts: Tensor
    of_row: Tensor
    lengths: Tensor
    rest: Tensor
    chosen: Tensor


def chosen_hidden(llama: PlainLlama, ids: Tensor, chosen: Tensor) -> Tensor:
    """Return hidden states [n, H] at chosen positions, as for rows that are read separately.

    Except for rounding; see :func:`share_prefixes` for the shapes.
    """
    shared = share_prefixes(ids, chosen)
    if shared is None:
        hidden: Tensor = llama(ids)
        return hidden[chosen]
    read = llama.read_behind(shared.prompts, shared.of_row, shared.lengths, shared.rest)
    return read[shared.chosen]


def share_prefixes(ids: Tensor, chosen: Tensor) -> SharedPrefixes | None:
    """Split rows int[B, T], padded on the right, before their first chosen position, bool[B, T].

    None if too little is shared.
    """
    rows, width = ids.shape
    lengths = chosen.int().argmax(1)
    longest = int(lengths.max())
    if rows < _PAYS or longest < 1:
        return None
    position = torch.arange(longest, device=ids.device)
    # -1 is no token: a prompt differs from a longer one with the same prefix
    keys = ids[:, :longest].masked_fill(position >= lengths[:, None], -1)
    seen: dict[bytes, int] = {}
    of_row = [seen.setdefault(key.tobytes(), len(seen)) for key in keys.cpu().numpy()]
    if _PAYS * len(seen) > rows:
        return None
    firsts = [of_row.index(prompt) for prompt in range(len(seen))]
    following = lengths[:, None] + torch.arange(width - int(lengths.min()), device=ids.device)
    positions = following.clamp(max=width - 1)
    return SharedPrefixes(
        prompts=keys[firsts].clamp(min=0),
        of_row=torch.tensor(of_row, device=ids.device),
        lengths=lengths,
        rest=ids.gather(1, positions),
        chosen=chosen.gather(1, positions) & (following < width),
    )
