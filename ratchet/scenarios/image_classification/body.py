"""The body of an agent that looks at an image, and what agents perceive of it.

Shape letters: b rows, C colours, H and W pixels, h and w latent pixels, S = h·w symbols, F features
of the conversation for each symbol, c channels, d features.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.building import POOLED, SYMBOLS
from ratchet.agents.networks.layers import Initializer, NormAndNoise, activation
from ratchet.agents.parts import AgentBody, AgentInput, Perception, Prepared, Representation
from ratchet.scenarios.image_classification.blocks import BlockGroup, make_conv2d
from ratchet.scenarios.image_classification.dataset import LARGEST_BYTE
from ratchet.scenarios.image_classification.embeddings import is_embedding_field

if TYPE_CHECKING:
    from ratchet.scenarios.image_classification.parameters import (
        ImageClassificationAgentParameters,
        ImageClassificationParameters,
    )


class ImagePerception(Perception):
    """Normalised images; every latent pixel may always be named."""

    def __init__(self, num_symbols: int) -> None:
        self._num_symbols = num_symbols

    def prepare(self, data: TensorDictBase) -> Prepared:
        """Make images ready.

        Given ``image`` uint8 [b, C, H, W], ``pixel_mean`` and ``pixel_std`` f32 [b, C], and
        pretrained embeddings f16 [b, c', h', w'], if any, return the images, f32, normalised, and
        the embeddings, f32.
        """
        mean, std = (data.get(key)[..., None, None] for key in ("pixel_mean", "pixel_std"))
        prepared = {"image": (data.get("image") / LARGEST_BYTE - mean) / std}
        for key in data.keys():  # noqa: SIM118 -- a tensordict is no mapping
            if is_embedding_field(key):
                prepared[key] = data.get(key).to(torch.float32)
        return prepared

    def num_symbols(self, data: Prepared) -> int:
        """Return S."""
        return self._num_symbols

    def allowed_symbols(self, is_prover: bool, data: Prepared, message: Tensor) -> Tensor:
        """Allow all."""
        return torch.ones(1, 1, 1, self._num_symbols, dtype=torch.bool, device=message.device)


@dataclass(frozen=True)
class BodyShape:
    """Sizes of what goes into an image body and comes out: image (C, H, W), grid (h, w).

    ``d_history`` is F, the features of the whole conversation for each symbol, ``d_message`` those
    of the latest messages. ``embedding`` is the data's field with pretrained embeddings and their
    channels, None without.
    """

    image: tuple[int, int, int]
    grid: tuple[int, int]
    d_history: int
    d_message: int
    d_representation: int
    d_linear_history: int | None = None
    embedding: tuple[str, int] | None = None


class ImageBody(AgentBody):
    """A convolutional network over the image and the conversation laid upon it.

    The conversation is one layer for each round, channel and position, spread over the pixels
    that each latent pixel stands for. A perceptron for each pixel, then groups of blocks; the
    latest messages are added to what they make of the latent pixels.
    """

    def __init__(
        self,
        parameters: ImageClassificationAgentParameters,
        scenario_parameters: ImageClassificationParameters,
        shape: BodyShape,
        init: Initializer,
        read: Collection[str] = (POOLED, SYMBOLS),
    ) -> None:
        super().__init__()
        self.shape = shape
        self._activation = activation(parameters.activation_function)
        channels = scenario_parameters.initial_num_channels
        self.pixel_in = make_conv2d(init, shape.image[0] + shape.d_history, channels)
        self.pixel_out = make_conv2d(init, channels, channels)
        self.groups = nn.ModuleList()
        for group in range(1, scenario_parameters.num_block_groups + 1):
            grid = (shape.image[1] >> group, shape.image[2] >> group)
            self.groups.append(BlockGroup(parameters, channels, grid, init))
            channels *= 2
        self.message_in = make_conv2d(init, shape.d_message, channels)
        self.embedding_in = None
        if shape.embedding is not None:
            out = parameters.pretrained_embedding_channels
            self.embedding_in = make_conv2d(init, shape.embedding[1], out)
            channels += out
        self.norm_and_noise = NormAndNoise(parameters, channels, init.device)
        d_linear = shape.d_linear_history or 0
        self.pooled_out = self.symbols_out = None
        if POOLED in read:
            self.pooled_out = init.linear(channels + d_linear, shape.d_representation)
        if SYMBOLS in read:
            self.symbols_out = init.linear(2 * channels + d_linear, shape.d_representation)

    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b conversations over b images."""
        latent = self._latent_pixels(inputs)  # [b, S, c]
        pooled = [self.norm_and_noise(latent.mean(1), inputs.generator)]
        if inputs.linear_history is not None:
            pooled.append(inputs.linear_history.flatten(1))
        overall = torch.cat(pooled, dim=1)
        symbols = None
        if self.symbols_out is not None:
            beside = overall.unsqueeze(1).expand(-1, latent.shape[1], -1)
            symbols = self.symbols_out(torch.cat([latent, beside], dim=2))
        return Representation(
            pooled=None if self.pooled_out is None else self.pooled_out(overall), symbols=symbols
        )

    def _latent_pixels(self, inputs: AgentInput) -> Tensor:
        """Run everything up to the grid of latent pixels: f32 [b, S, c]."""
        _, height, width = self.shape.image
        said = inputs.history.reshape(len(inputs.history), -1, *self.shape.grid)  # [b, F, h, w]
        said = F.interpolate(said, size=(height, width), mode="nearest")
        x: Tensor = self.pixel_in(torch.cat([inputs.data["image"], said], dim=1))
        x = self._activation(self.pixel_out(self._activation(x)))
        for group in self.groups:
            x = group(x)
        latest = inputs.message.to(x.dtype).reshape(len(x), -1, *self.shape.grid)
        x = x + self.message_in(latest)
        if self.embedding_in is not None and self.shape.embedding is not None:
            embedding = inputs.data[self.shape.embedding[0]]
            embedding = F.adaptive_avg_pool2d(embedding, self.shape.grid)
            x = torch.cat([x, self._activation(self.embedding_in(embedding))], dim=1)
        return x.flatten(2).transpose(1, 2)
