"""Exchanges: a verifier's question and the answers to it, as rounds of a protocol.

Agents with ``tie_exchanges`` read the marks of an exchange's rounds as one column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratchet.protocols.handler import ProtocolHandler


def exchange_lengths(handler: ProtocolHandler) -> tuple[int, ...]:
    """Return of how many rounds each exchange consists, in the order of play; their sum is R.

    An exchange begins wherever a verifier may act, and ends before its next turn, so that a
    question and the answers to it are one:

    - ``nip``: rounds (0, 1), (2, 3) …; if the prover begins 0, (1, 2), (3, 4) …: what it says
      unasked stands by itself.
    - ``debate`` and ``mnip``: the same where provers answer at once; if in turn (0, 1, 2),
      (3, 4, 5) …, and if they begin (0, 1), (2, 3, 4) …. Channels stay apart: in each the question
      meets that prover's own answer.
    - ``adp`` and ``merlin_arthur``: 0, 1. Nobody asks, and nothing is tied.

    A last exchange may lack its answer. The zero-knowledge version goes by its base protocol.
    """
    verifiers = [handler.agent_index(name) for name in handler.verifier_names]
    begins = handler.can_be_active_mask[:, verifiers].any(-1).any(-1)  # [R]
    starts = sorted({0, *begins.nonzero().flatten().tolist()})
    ends = [*starts[1:], len(begins)]
    return tuple(end - start for start, end in zip(starts, ends, strict=True))


def tie_rounds(history: Tensor, lengths: Sequence[int]) -> Tensor:
    """Make one column of the rounds of each exchange: f32 [b, R, …] → [b, exchanges, …].

    A symbol is marked if any round has named it. The largest value says that whatever the order
    in which it was named, so that a question and the answer to it leave equal marks.
    """
    return torch.stack([part.amax(1) for part in torch.split(history, list(lengths), 1)], 1)
