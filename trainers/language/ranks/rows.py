"""Row-wise methods of trainers, which ranks execute on parts of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ratchet.rollouts.batch import Batch
    from trainers.language.ranks.trainer import RankTrainer

_Trainer = TypeVar("_Trainer", bound="RankTrainer")


def of_rows(
    read: Callable[[_Trainer, Batch], Tensor],
) -> Callable[[_Trainer, Batch], Tensor]:
    """Decorate a method that returns ``[B, …]`` for a batch's rows, without gradients.

    With ranks, each of them calls the method on some of the rows.
    """

    @wraps(read)
    @torch.no_grad()
    def shared(trainer: _Trainer, batch: Batch) -> Tensor:
        if trainer._ranks is not None and len(batch):
            return trainer._ranks.read_rows(read.__qualname__, batch)
        return read(trainer, batch)

    return shared


def method_of(trainer: RankTrainer, name: str) -> Callable[..., Tensor]:
    """Return the method ``Class.name`` itself, not an override of it."""
    owner, _, name = name.rpartition(".")
    found = next(each for each in type(trainer).__mro__ if each.__qualname__ == owner)
    method: Callable[..., Tensor] = vars(found)[name]
    return method
