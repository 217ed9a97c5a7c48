"""The order in which a batch's rows are learned from."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ratchet.seeding import torch_generator
from trainers.language.base import TrainingPosition


def minibatches(
    rows: int, size: int, *, epoch: int, moment: TrainingPosition, together: int = 1
) -> Iterator[Tensor]:
    """Iterate over the row indices of a pass's minibatches: each row once, in seeded order.

    Rows keep their order if they fit one minibatch. Blocks of ``together`` successive rows stay
    together; ``size`` is a multiple of it.
    """
    if size >= rows:
        yield torch.arange(rows)
        return
    generator = torch_generator(moment.seed, "train", moment.iteration, f"minibatches.{epoch}")
    blocks = torch.arange(rows).view(-1, together)
    order = torch.randperm(len(blocks), generator=generator)
    for start in range(0, len(order), size // together):
        yield blocks[order[start : start + size // together]].flatten()
