"""What a body may do to its pooled representation: normalise it over the batch, add noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ratchet.parameters.networks import NetworkAgentParameters


class NormAndNoise(nn.Module):
    """Batch norm without running statistics, then Gaussian noise; either only if asked for."""

    def __init__(
        self, parameters: NetworkAgentParameters, d: int, device: str | torch.device = "cpu"
    ) -> None:
        super().__init__()
        self.noise_sigma = parameters.noise_sigma
        self.norm = None
        if parameters.use_batch_norm:
            self.norm = nn.BatchNorm1d(d, track_running_stats=False, device=device)

    def forward(self, pooled: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Map f32 [b, d] to the same; noise is drawn from ``generator``, in training only."""
        if self.norm is not None:
            # One row alone is its own mean, which torch refuses to normalise.
            pooled = self.norm(pooled) if len(pooled) > 1 else self.norm.bias.expand_as(pooled)
        if self.noise_sigma and self.training:
            noise = torch.empty_like(pooled).normal_(0, self.noise_sigma, generator=generator)
            pooled = pooled + noise
        return pooled
