"""Rows with shared prefixes, such as responses to one task: each prefix is read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ratchet.models.llama import PlainLlama

_PAYS = 2  # rows per prefix, on average; with fewer, copying costs more than it saves


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Rows split before the first position whose logits are requested.

    Parameters
    ----------
    prompts
        int[U, P], the distinct prefixes, padded on the right.
    of_row
        int[B], the index of each row's prefix.
    lengths
        int[B], the length of each row's prefix.
    rest
        int[B, A], the tokens after the prefix, padded on the right.
    chosen
        bool[B, A], the positions in ``rest`` whose logits are requested.
    """

    prompts: Tensor
    of_row: Tensor
    lengths: Tensor
    rest: Tensor
    chosen: Tensor


def chosen_logits(llama: PlainLlama, ids: Tensor, chosen: Tensor) -> Tensor:
    """Return the logits [n, V] after chosen positions.

    Equal to those of rows that are read separately, up to rounding. Shapes as for
    :func:`share_prompts`.
    """
    shared = share_prompts(ids, chosen)
    if shared is None:
        return llama.logits(llama(ids)[chosen])
    read = llama.read_behind(shared.prompts, shared.of_row, shared.lengths, shared.rest)
    return llama.logits(read[shared.chosen])


def share_prompts(ids: Tensor, chosen: Tensor) -> SharedPrompts | None:
    """Split rows int[B, T], padded on the right, before their first chosen position, bool[B, T].

    None if rows share too little.
    """
    rows, width = ids.shape
    lengths = chosen.int().argmax(1)
    longest = int(lengths.max())
    if rows < _PAYS or longest < 1:
        return None
    place = torch.arange(longest, device=ids.device)
    # -1 is no token: a prompt differs from a longer one with the same start
    keys = ids[:, :longest].masked_fill(place >= lengths[:, None], -1)
    seen: dict[bytes, int] = {}
    of_row = [seen.setdefault(key.tobytes(), len(seen)) for key in keys.cpu().numpy()]
    if _PAYS * len(seen) > rows:
        return None
    firsts = [of_row.index(prompt) for prompt in range(len(seen))]
    following = lengths[:, None] + torch.arange(width - int(lengths.min()), device=ids.device)
    places = following.clamp(max=width - 1)
    return SharedPrompts(
        prompts=keys[firsts].clamp(min=0),
        of_row=torch.tensor(of_row, device=ids.device),
        lengths=lengths,
        rest=ids.gather(1, places),
        chosen=chosen.gather(1, places) & (following < width),
    )
