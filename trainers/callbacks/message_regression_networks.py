"""Networks that predict y from one agent's messages in an episode.

Shape letters: K episodes, R rounds, F features of a round (channels, positions and symbols).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ratchet.agents.networks.layers import Initializer, Mlp, activation

if TYPE_CHECKING:
    from ratchet.parameters.options import MessageRegressionParameters

NUM_LABELS = 2
_KERNEL = 3


class MlpRegressor(nn.Module):
    """A multilayer perceptron over all R rounds of F features.

    ``num_layers`` hidden layers of ``hidden_size`` with ``activation`` between them.
    """

    def __init__(
        self,
        section: MessageRegressionParameters,
        num_rounds: int,
        num_features: int,
        init: Initializer,
    ) -> None:
        super().__init__()
        hidden = [section.hidden_size] * section.num_layers
        sizes = [num_rounds * num_features, *hidden, NUM_LABELS]
        self.mlp = Mlp(sizes, section.activation, init)

    def forward(self, said: Tensor) -> Tensor:
        """Map f32 [K, R, F] to logits [K, 2]."""
        logits: Tensor = self.mlp(said.flatten(1))
        return logits


class CnnRegressor(nn.Module):
    """Convolutions over three rounds each, followed by a maximum over rounds.

    It detects evidence for y in any round. Parameters as for :class:`MlpRegressor`.
    """

    def __init__(
        self,
        section: MessageRegressionParameters,
        num_rounds: int,
        num_features: int,
        init: Initializer,
    ) -> None:
        super().__init__()
        widths = [num_features, *[section.hidden_size] * section.num_layers]
        self.convs = nn.ModuleList(
            init.linear(_KERNEL * before, after) for before, after in pairwise(widths)
        )
        self.out = init.linear(widths[-1], NUM_LABELS)
        self._activation = activation(section.activation)

    def forward(self, said: Tensor) -> Tensor:
        """Map f32 [K, R, F] to logits [K, 2]."""
        x = said
        for conv in self.convs:
            before, after = torch.zeros_like(x[:, :1]), torch.zeros_like(x[:, :1])
            padded = torch.cat([before, x, after], dim=1)
            windows = padded.unfold(1, _KERNEL, 1).flatten(2)  # [K, R, F * kernel]
            x = self._activation(conv(windows))
        logits: Tensor = self.out(x.amax(1))
        return logits


REGRESSORS: dict[str, type[MlpRegressor] | type[CnnRegressor]] = {
    "mlp": MlpRegressor,
    "cnn": CnnRegressor,
}
