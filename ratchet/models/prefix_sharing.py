"""Rows that begin alike, such as the answers to one task: what they share is read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ratchet.models.llama import PlainLlama

_PAYS = 2  # rows a beginning, on average; with fewer, more is moved about than saved


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Rows cut in two before the first place that is asked about.

    Parameters
    ----------
    prompts
        int[U, P], what rows begin with, each once, padded on the right.
    of_row
        int[B], which of them a row begins with.
    lengths
        int[B], how long it is.
    rest
        int[B, A], what follows, padded on the right.
    chosen
        bool[B, A], the places there that are asked about.
    """

    prompts: Tensor
    of_row: Tensor
    lengths: Tensor
    rest: Tensor
    chosen: Tensor


def chosen_logits(llama: PlainLlama, ids: Tensor, chosen: Tensor) -> Tensor:
    """Return the logits [n, V] after chosen places, as rows that are read alone have them.

    But for rounding; see :func:`share_prompts` for the shapes.
    """
    shared = share_prompts(ids, chosen)
    if shared is None:
        return llama.logits(llama(ids)[chosen])
    read = llama.read_behind(shared.prompts, shared.of_row, shared.lengths, shared.rest)
    return llama.logits(read[shared.chosen])


def share_prompts(ids: Tensor, chosen: Tensor) -> SharedPrompts | None:
    """Cut rows int[B, T], padded on the right, before their first of chosen places, bool[B, T].

    None where there is little to share.
    """
    rows, width = ids.shape
    lengths = chosen.int().argmax(1)
    longest = int(lengths.max())
    if rows < _PAYS or longest < 1:
        return None
    place = torch.arange(longest, device=ids.device)
    # -1 is no token: a prompt differs from a longer one that begins like it
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
