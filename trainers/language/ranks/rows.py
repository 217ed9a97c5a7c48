"""Work sharing among ranks: rows of a minibatch, row-wise methods, and the trainer's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import nn

    from ratchet.language_models.engines.rollouts import RolloutEngine
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.parameters.language import LanguageParameters
    from ratchet.rollouts.batch import Batch
    from trainers.language.base import TrainingPosition
    from trainers.language.optimization import LanguageOptimizer
    from trainers.language.policy_loss import Figures

Rows: TypeAlias = Sequence[int]
"""Indices of rows."""
_Trainer = TypeVar("_Trainer", bound="RankTrainer")


@dataclass(frozen=True, slots=True)
class RankShare:
    """The part of the work of one of several processes; a single process does all of it.

    Attributes
    ----------
    rank
        The index of the process, from 0.
    world_size
        The number of processes.
    """

    rank: int = 0
    world_size: int = 1

    def rows(self, count: int) -> list[int]:
        """Return the indices of this process's rows, equally many in each process.

        Padded with the last index.
        """
        part = self.part(count)
        return [min(row, count - 1) for row in range(part.start, part.stop)]

    def part(self, count: int) -> slice:
        """Return the slice of this process's items; the last processes may have fewer or none."""
        each = self.most(count)
        return slice(self.rank * each, (self.rank + 1) * each)

    def most(self, count: int) -> int:
        """Return the largest number of ``count`` items per process."""
        return -(-count // self.world_size)

    def pad_parts(self, parts: Sequence[Sequence[Rows]], padding: Rows) -> list[tuple[Rows, bool]]:
        """Return this process's parts of a minibatch, and whether they count.

        ``parts`` are those of each process. All read the same number, since they gather weights
        together: padding does not count.
        """
        missing = max(map(len, parts)) - len(parts[self.rank])
        return [(rows, True) for rows in parts[self.rank]] + [(padding, False)] * missing


class RowShardedMethod(Protocol):
    """Calls a trainer's method on parts of a batch's rows."""

    def read_rows(self, method: str, batch: Batch) -> Tensor:
        """Return the method's result for all rows."""
        ...


class RankTrainer(Protocol):
    """A trainer that takes steps itself or through ranks."""

    language: LanguageParameters
    model: LanguageModel
    moment: TrainingPosition
    share: RankShare | None
    _config: DictConfig
    _optimizer: LanguageOptimizer

    @property
    def _ranks(self) -> RowShardedMethod | None: ...

    def connect(self, model: LanguageModel, engine: RolloutEngine) -> None:
        """Train this model from now on."""
        ...

    def _learning_parameters(self) -> list[nn.Parameter]: ...

    def _learn(self, batch: Batch) -> list[Figures]: ...

    def fitting_tokens(self) -> int | None:
        """Return the most tokens of a micro-batch that fit; None without a limit."""
        ...


def ranks_sample(language: LanguageParameters) -> bool:
    """Return whether ranks generate the completions.

    They do with the built-in engine, unless a separate process samples while they train.
    """
    return (
        language.train_service.world_size > 1
        and language.engine.name == "in_process"
        and language.mode != "one_step_behind"
    )


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
    owner_class = next(each for each in type(trainer).__mro__ if each.__qualname__ == owner)
    method: Callable[..., Tensor] = vars(owner_class)[name]
    return method
