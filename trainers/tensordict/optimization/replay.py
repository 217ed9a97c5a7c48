"""Frames of one iteration in shuffled minibatches: by index, or complete rows of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.agents.actor_critic import INDEX
from ratchet.errors import StateError
from trainers.tensordict.objectives.value_estimators import Key

Transform = Callable[[TensorDictBase], TensorDictBase]


class RolloutBuffer:
    """Stores one batch of frames without copying it.

    ``minibatch_size`` is the largest number of frames in a minibatch; ``transform`` is applied to
    rollouts ``[E, T]`` before they are stored.
    """

    def __init__(self, minibatch_size: int, transform: Transform | None = None) -> None:
        self.minibatch_size = minibatch_size
        self.transform = transform
        self._frames: TensorDictBase | None = None

    def __len__(self) -> int:
        return 0 if self._frames is None else self._frames.batch_size[0]

    def store(self, rollouts: TensorDictBase) -> None:
        """Store rollouts ``[E, T]``, replacing the previous ones."""
        if self.transform is not None:
            rollouts = self.transform(rollouts)
        self._frames = rollouts.reshape(-1)

    @property
    def frames(self) -> TensorDictBase:
        """All frames, ``[E·T]``; StateError if none are stored."""
        if self._frames is None:
            raise StateError("replay buffer: no frames are stored; call store(rollouts) first.")
        return self._frames

    def minibatches(
        self, generator: torch.Generator, keys: Sequence[Key] | None = None
    ) -> Iterator[TensorDictBase]:
        """Return every frame once, in minibatches of sizes that differ by at most one.

        All frames are shuffled in one operation, so that minibatches are views. ``keys``: all by
        default; :data:`INDEX` is the index among all frames.
        """
        frames = self.frames
        if keys is not None:
            frames = frames.select(*keys, strict=False)
        count = math.ceil(len(self) / self.minibatch_size)
        order = torch.randperm(len(self), generator=generator)
        sizes = [len(part) for part in order.tensor_split(count)]
        leaf: Tensor = next(iter(frames.values(include_nested=True, leaves_only=True)))
        order = order.to(leaf.device)
        frames = frames[order]
        if keys is not None and INDEX in keys:
            frames.set(INDEX, order)
        yield from frames.split(sizes)


class EpisodeBuffer(RolloutBuffer):
    """Yields minibatches ``[e, T]``: some environments with all their steps."""

    num_steps = 1

    def store(self, rollouts: TensorDictBase) -> None:
        """Store rollouts ``[E, T]``, replacing the previous ones."""
        self.num_steps = rollouts.batch_size[1]
        super().store(rollouts)

    def minibatches(
        self, generator: torch.Generator, keys: Sequence[Key] | None = None
    ) -> Iterator[TensorDictBase]:
        """Return every row once, shuffled, in minibatches whose sizes differ by at most one row.

        ``keys``: all by default; :data:`INDEX` is the index among all frames.
        """
        frames = self.frames if keys is None else self.frames.select(*keys, strict=False)
        num_rows = len(self) // self.num_steps
        count = math.ceil(num_rows / max(1, self.minibatch_size // self.num_steps))
        order = torch.randperm(num_rows, generator=generator)
        sizes = [len(part) for part in order.tensor_split(count)]
        index = order.unsqueeze(1) * self.num_steps + torch.arange(self.num_steps)
        index = index.to(self.frames["round"].device)
        rows = frames[index.flatten()].reshape(num_rows, self.num_steps)
        if keys is not None and INDEX in keys:
            rows.set(INDEX, index)
        yield from rows.split(sizes)
