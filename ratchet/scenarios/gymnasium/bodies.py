"""What makes features of what an agent sees: a perceptron, or convolutions of images before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor, nn

from ratchet.agents.networks.layers import Initializer, activation
from ratchet.agents.parts import AgentPart
from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.recurrence import RecurrentBody

if TYPE_CHECKING:
    from ratchet.scenarios.gymnasium.parameters import Convolution, GymnasiumAgentParameters
    from ratchet.scenarios.gymnasium.sight import Sight

Layer: TypeAlias = tuple[Tensor, Tensor]
"""Weight [d_out, d_in] and bias [d_out]."""

_LARGE_SIDE = 36
_OF_LARGE_IMAGES: tuple[Convolution, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of each layer: those of Mnih et al. (2015)."""
_OF_SMALL_IMAGES: tuple[Convolution, ...] = ((16, 3, 1), (32, 3, 2))


class Body(AgentPart):
    """Hidden layers of sizes d_in, then each layer's, with the activation function after each."""

    def __init__(
        self, sizes: Sequence[int], init: Initializer, activation_name: str = "tanh"
    ) -> None:
        super().__init__()
        self.activation_name = activation_name
        self.num_features = sizes[-1]
        self.layers = nn.ModuleList(init.linear(d_in, d_out) for d_in, d_out in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers to x f32 [B, d]."""
        act = activation(self.activation_name)
        for layer in self.layers:
            x = act(layer(x))
        return x

    @property
    def weights(self) -> list[Layer]:
        """Weight and bias of each layer."""
        layers = cast(Iterator[nn.Linear], iter(self.layers))
        return [(layer.weight, layer.bias) for layer in layers]


class ConvolutionalBody(AgentPart):
    """Convolutions over the images in what is seen, and a perceptron over all that comes of them.

    Images of several agents, and those of a stack of frames, are channels of one. Bytes are scaled
    to [0, 1].
    """

    def __init__(
        self,
        sight: Sight,
        parameters: GymnasiumAgentParameters,
        init: Initializer,
        where: str,
    ) -> None:
        super().__init__()
        space = sight.spaces[0]
        if any(s.shape != space.shape for s in sight.spaces) or space.shape is None:
            raise ParameterError(
                f"{where}.body: a 'cnn' would see observations of the shapes"
                f" {[s.shape for s in sight.spaces]}, expected images (of two to four dimensions)"
                " of one shape. Set it to 'perceptron'."
            )
        self.shape = space.shape
        self.scale = 1 / 255 if space.is_bytes else 1.0
        self.activation_name = parameters.activation_function
        self.num_pixels = len(sight.spaces) * prod(self.shape)
        self.channels_last = _has_channels_last(self.shape, parameters.image_channels)
        first = self._images(torch.zeros(1, sight.size))
        layers = parameters.convolutions or _usual_convolutions(first)
        made: list[nn.Conv2d] = []
        _, channels, height, width = first.shape
        for index, (d_out, kernel, stride) in enumerate(layers):
            if min(height, width) < kernel:
                raise ParameterError(
                    f"{where}.convolutions: the kernel of layer {index + 1} is {kernel} wide, but"
                    f" what comes to it is {height} × {width}; observations are {self.shape}."
                    " Expected smaller kernels or strides, e.g. [[16, 3, 1], [32, 3, 2]]."
                )
            made.append(init.convolution(channels, d_out, kernel, stride))
            channels = d_out
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self.convolutions = nn.ModuleList(made)
        size = channels * height * width + sight.size - self.num_pixels
        self.top = Body([size, *parameters.hidden_sizes], init, self.activation_name)
        self.num_features = self.top.num_features

    def forward(self, x: Tensor) -> Tensor:
        """Make features of x f32 [B, d]: pixels, and then whatever else is seen."""
        act, hidden = activation(self.activation_name), self._images(x)
        for layer in self.convolutions:
            hidden = act(layer(hidden))
        features: Tensor = self.top(torch.cat([hidden.flatten(1), x[:, self.num_pixels :]], 1))
        return features

    def _images(self, x: Tensor) -> Tensor:
        """Return the images in x [B, d], scaled: f32 [B, C, H, W]."""
        images = x[:, : self.num_pixels].reshape(len(x), -1, *self.shape)
        if self.channels_last:
            images = images.movedim(-1, -3)
        return images.reshape(len(x), -1, *images.shape[-2:]) * self.scale


AnyBody: TypeAlias = Body | ConvolutionalBody | RecurrentBody


def _has_channels_last(shape: tuple[int, ...], channels: str) -> bool:
    """Return whether the last dimension is that of colours; of two the smaller one is."""
    if len(shape) == 2:
        return False
    return channels == "last" or (channels == "auto" and shape[-1] <= shape[-3])


def _usual_convolutions(image: Tensor) -> tuple[Convolution, ...]:
    return _OF_LARGE_IMAGES if min(image.shape[-2:]) >= _LARGE_SIDE else _OF_SMALL_IMAGES


def sees_images(sight: Sight, parameters: GymnasiumAgentParameters) -> bool:
    """Return whether a network has convolutions."""
    if parameters.body == "auto":
        return all(space.is_image for space in sight.spaces)
    return parameters.body == "cnn"


def build_body(
    sight: Sight, parameters: GymnasiumAgentParameters, init: Initializer, where: str
) -> AnyBody:
    """Build what makes features of a sight; ``where`` is the section in the experiment.

    Raises
    ------
    ParameterError
        If images are asked for and there are none, or none that convolutions fit.
    """
    body: Body | ConvolutionalBody
    if sees_images(sight, parameters):
        body = ConvolutionalBody(sight, parameters, init, where)
    else:
        sizes = [sight.size, *parameters.hidden_sizes]
        body = Body(sizes, init, parameters.activation_function)
    if parameters.recurrence is None:
        return body
    return RecurrentBody(body, parameters.recurrence, parameters.recurrent_size, init)
