"""The rollouts of one iteration, given out in minibatches of whole rows: episodes stay together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from tensordict import TensorDictBase

from trainers.tensordict.replay import ReplayBuffer
from trainers.tensordict.value_estimators import Key


class EpisodeBuffer(ReplayBuffer):
    """Holds rollouts ``[E, T]`` as they are; a minibatch is some environments with all steps."""

    def __len__(self) -> int:
        return 0 if self._frames is None else self._frames.numel()

    def store(self, rollouts: TensorDictBase) -> None:
        """Take rollouts ``[E, T]`` in place of what was stored before."""
        self._frames = rollouts if self.transform is None else self.transform(rollouts)

    def minibatches(
        self, generator: torch.Generator, keys: Sequence[Key] | None = None
    ) -> Iterator[TensorDictBase]:
        """Give every row once, in minibatches ``[e, T]`` whose sizes differ by at most one row.

        Parameters
        ----------
        generator
            Shuffles.
        keys
            Which keys to give; all by default.
        """
        rows = self.frames
        if keys is not None:
            rows = rows.select(*keys, strict=False)
        num_rows, steps = rows.batch_size
        per_batch = max(1, self.minibatch_size // steps)
        order = torch.randperm(num_rows, generator=generator).to(rows.device)
        for indices in order.tensor_split(math.ceil(num_rows / per_batch)):
            yield rows[indices]
