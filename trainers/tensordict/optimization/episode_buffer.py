"""Frames of one iteration in minibatches of complete rows, so that episodes stay together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from tensordict import TensorDictBase

from ratchet.agents.actor_critic import INDEX
from trainers.tensordict.objectives.value_estimators import Key
from trainers.tensordict.optimization.replay import RolloutBuffer


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
