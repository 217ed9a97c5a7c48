"""How the observations of an environment's agents are normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.agents.actor_critic import Key, Normalizer

OBSERVATION = ("agents", "observation")


class FeatureNormalizer(Normalizer):
    """A mean and a deviation for each number of each agent's observations: ``shape`` (A, D).

    Agents of one of the groups of ``alike``, places among the A, have the same; images, of the
    agents in the places of ``images``, are left as they are.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        device: str | torch.device = "cpu",
        *,
        alike: Sequence[Sequence[int]] = (),
        images: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.alike, self.images = alike, list(images)
        self.keys: tuple[Key, ...] = () if len(self.images) == shape[0] else (OBSERVATION,)
        self.register_buffer("observation_mean", torch.zeros(shape, device=device))
        self.register_buffer("observation_std", torch.ones(shape, device=device))

    def fit(self, frames: TensorDictBase) -> None:
        """Take mean and (population) deviation; a number that never changes is only shifted."""
        values = frames.get(OBSERVATION).flatten(0, -3).double()
        mean, std = values.mean(0), values.std(0, correction=0)
        for places in (list(group) for group in self.alike if len(group) > 1):
            together = values[:, places].flatten(0, 1)
            mean[places], std[places] = together.mean(0), together.std(0, correction=0)
        mean[self.images], std[self.images] = 0.0, 1.0
        self.get_buffer("observation_mean").copy_(mean)
        self.get_buffer("observation_std").copy_(torch.where(std > 0, std, 1.0))

    def forward(self, observation: Tensor) -> Tensor:
        """Normalise [*B, A, D]."""
        mean = self.get_buffer("observation_mean")
        return (observation - mean) / self.get_buffer("observation_std")
