"""Observation normalisation: fitted on training frames, applied in the bodies' input.

One mean and one standard deviation per key, shared over all positions, so that relabelling the
symbols stays a symmetry of the agents.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.agents.actor_critic import Key, Normalizer

NORMALIZED_KEYS = ("x", "linear_message_history")


class ObservationNormalizer(Normalizer):
    """Shifts and scales observations by fitted scalars; the identity until it is fitted."""

    def __init__(self, keys: Iterable[str] = NORMALIZED_KEYS) -> None:
        super().__init__()
        self.names = tuple(keys)
        self.keys: tuple[Key, ...] = self.names
        for key in self.names:
            self.register_buffer(f"{key}_mean", torch.zeros(()))
            self.register_buffer(f"{key}_std", torch.ones(()))

    def fit(self, frames: TensorDictBase) -> None:
        """Take mean and (population) standard deviation from frames of any batch size.

        A key that is not in the frames keeps the identity; a constant one is only shifted.
        """
        for key in self.names:
            values = frames.get(key, None)
            if values is None:
                continue
            values = values.to(torch.float64)
            std = values.std(correction=0)
            getattr(self, f"{key}_mean").copy_(values.mean())
            getattr(self, f"{key}_std").copy_(std if float(std) > 0 else torch.ones(()))

    def forward(self, key: str, values: Tensor) -> Tensor:
        """Normalise an observation of any shape and dtype to f32."""
        mean: Tensor = getattr(self, f"{key}_mean")
        std: Tensor = getattr(self, f"{key}_std")
        return (values.to(mean.dtype) - mean) / std
