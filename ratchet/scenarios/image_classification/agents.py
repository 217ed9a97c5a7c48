"""Agents that see an image: convolutional blocks, body and builder.

A group of blocks doubles the channels and halves the image's height and width. Shape letters:
b rows, C colours, H and W pixels, h and w latent pixels, S = h·w symbols, F features of the
conversation for each symbol, c channels, d features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.building import POOLED, SYMBOLS, AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer, NormAndNoise, activation
from ratchet.agents.parts import AgentBody, AgentInput, Perception, Prepared, Representation
from ratchet.scenarios.image_classification.backbone import embedding_field, is_embedding_field
from ratchet.scenarios.image_classification.dataset import (
    LARGEST_BYTE,
    latent_grid,
    read_dataset_name,
)
from ratchet.scenarios.image_classification.parameters import ImageClassificationAgentParameters

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.image_classification.parameters import ImageClassificationParameters


def make_conv2d(
    init: Initializer, c_in: int, c_out: int, kernel_size: int = 1, stride: int = 1
) -> nn.Conv2d:
    """Create a convolution, padded so that stride 1 keeps the size.

    Its weights are a linear layer's from all pixels under the kernel.
    """
    linear = init.linear(c_in * kernel_size**2, c_out)
    conv = nn.Conv2d(c_in, c_out, kernel_size, stride, padding=kernel_size // 2, device=init.device)
    conv.weight = nn.Parameter(linear.weight.detach().view(conv.weight.shape))
    conv.bias = linear.bias
    return conv


@dataclass(frozen=True)
class BlockSpec:
    """Channels in and out of a block, its kernels, and its activation function's name."""

    c_in: int
    c_out: int
    kernel_size: int
    stride: int
    activation_name: str


class ConvBlock(nn.Module):
    """A convolution and an activation function."""

    def __init__(self, init: Initializer, spec: BlockSpec) -> None:
        super().__init__()
        self.conv = make_conv2d(init, spec.c_in, spec.c_out, spec.kernel_size, spec.stride)
        self._activation = activation(spec.activation_name)

    def forward(self, x: Tensor) -> Tensor:
        """Map f32 [b, c_in, h, w] to [b, c_out, h / stride, w / stride]."""
        return self._activation(self.conv(x))


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut (He et al. 2016, the basic block), without batch norm.

    The shortcut is a 1 × 1 convolution if channels or size change.
    """

    def __init__(self, init: Initializer, spec: BlockSpec) -> None:
        super().__init__()
        c_in, c_out, kernel_size, stride = spec.c_in, spec.c_out, spec.kernel_size, spec.stride
        self.first = make_conv2d(init, c_in, c_out, kernel_size, stride)
        self.second = make_conv2d(init, c_out, c_out, kernel_size)
        same = c_in == c_out and stride == 1
        self.shortcut = None if same else make_conv2d(init, c_in, c_out, 1, stride)
        self._activation = activation(spec.activation_name)

    def forward(self, x: Tensor) -> Tensor:
        """Map f32 [b, c_in, h, w] to [b, c_out, h / stride, w / stride]."""
        residual = x if self.shortcut is None else self.shortcut(x)
        return self._activation(residual + self.second(self._activation(self.first(x))))


BLOCKS: dict[str, type[ConvBlock] | type[ResidualBlock]] = {
    "conv2d": ConvBlock,
    "residual_basic": ResidualBlock,
}


class BlockGroup(nn.Module):
    """A sequence of blocks, the first of which doubles the channels, then max-pooling.

    ``grid`` are the height and width of the output, regardless of the stride.
    """

    def __init__(
        self,
        parameters: ImageClassificationAgentParameters,
        c_in: int,
        grid: tuple[int, int],
        init: Initializer,
    ) -> None:
        super().__init__()
        p = parameters
        self.grid = grid
        first = BlockSpec(c_in, 2 * c_in, p.kernel_size, p.stride, p.activation_function)
        further = replace(first, c_in=2 * c_in, stride=1)
        specs = [first, *[further] * (p.num_blocks_per_group - 1)]
        self.blocks = nn.Sequential(*(BLOCKS[p.building_block_type](init, spec) for spec in specs))

    def forward(self, x: Tensor) -> Tensor:
        """Map f32 [b, c, h, w] to [b, 2c, *grid]."""
        return F.adaptive_max_pool2d(self.blocks(x), self.grid)


class ImagePerception(Perception):
    """Normalised images; every latent pixel may always be named."""

    def __init__(self, num_symbols: int) -> None:
        self._num_symbols = num_symbols

    def prepare(self, data: TensorDictBase) -> Prepared:
        """Prepare images.

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
    """Sizes of inputs and outputs of an image body: image (C, H, W), grid (h, w).

    ``d_history`` is F, the features of the conversation for each symbol, ``d_message`` those of the
    latest messages. ``embedding`` is the data's field with pretrained embeddings and their
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
    """A convolutional network over the image and the conversation, as additional channels.

    The conversation is one layer for each round, channel and position, repeated over the pixels of
    each latent pixel. A perceptron for each pixel, then groups of blocks; the latest messages are
    added to their features of the latent pixels.
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
        pooled = [self.norm_and_noise(latent.mean(1), inputs)]
        if inputs.linear_history is not None:
            pooled.append(inputs.linear_history.flatten(1))
        overall = torch.cat(pooled, dim=1)
        symbols = None
        if self.symbols_out is not None:
            pixel_context = overall.unsqueeze(1).expand(-1, latent.shape[1], -1)
            symbols = self.symbols_out(torch.cat([latent, pixel_context], dim=2))
        return Representation(
            pooled=None if self.pooled_out is None else self.pooled_out(overall), symbols=symbols
        )

    def _latent_pixels(self, inputs: AgentInput) -> Tensor:
        """Run everything up to the grid of latent pixels: f32 [b, S, c]."""
        _, height, width = self.shape.image
        history = inputs.history.reshape(len(inputs.history), -1, *self.shape.grid)  # [b, F, h, w]
        history = F.interpolate(history, size=(height, width), mode="nearest")
        x: Tensor = self.pixel_in(torch.cat([inputs.data["image"], history], dim=1))
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


class ImageAgentBuilder(AgentBuilder[ImageClassificationAgentParameters]):
    """Builder of agents with the common heads over convolutional bodies."""

    section_class = ImageClassificationAgentParameters

    def build_body(
        self,
        plan: AgentPlan[ImageClassificationAgentParameters],
        init: Initializer,
        read: Collection[str],
    ) -> ImageBody:
        """Create a body."""
        _, source, _ = read_dataset_name(plan.hyper_params.dataset)
        shape = BodyShape(
            image=source.shape,
            grid=latent_grid(plan.hyper_params),
            d_history=plan.d_history,
            d_message=plan.num_written_channels * plan.hyper_params.message_size,
            d_representation=plan.hyper_params.d_representation,
            d_linear_history=plan.d_linear_history,
            embedding=_embedding(plan.section.pretrained_embeddings_model),
        )
        section = plan.hyper_params.image_classification
        return ImageBody(plan.section, section, shape, init, read)

    def build_perception(self, hyper_params: HyperParameters) -> ImagePerception:
        """Return the preparation of images."""
        height, width = latent_grid(hyper_params)
        return ImagePerception(height * width)


def backbones(hyper_params: HyperParameters, names: Iterable[str]) -> list[str]:
    """Return the pretrained backbones of some agents; random agents have none."""
    sections = [hyper_params.agents[name] for name in names]
    models = {
        section.pretrained_embeddings_model
        for section in sections
        if isinstance(section, ImageClassificationAgentParameters) and not section.is_random
    }
    return sorted(model for model in models if model is not None)


def _embedding(model: str | None) -> tuple[str, int] | None:
    if model is None:
        return None
    from ratchet.scenarios.image_classification.backbone import embedding_channels

    return embedding_field(model), embedding_channels(model)
