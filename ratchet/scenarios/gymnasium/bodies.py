"""Bodies of gymnasium agents: network inputs, feed-forward and convolutional networks.

A policy sees only its agent's observation, so that agents can act independently. A centralised
critic sees all observations and is used only in training. A memory follows on a body's features
(:mod:`ratchet.scenarios.gymnasium.recurrent_bodies`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ratchet.agents.networks.layers import Initializer, activation
from ratchet.agents.networks.registry import agent_class
from ratchet.agents.parts import AgentPart
from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.recurrence import RECURRENCES
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces

if TYPE_CHECKING:
    from ratchet.scenarios.gymnasium.parameters import Convolution, GymnasiumAgentParameters

Layer: TypeAlias = tuple[Tensor, Tensor]
"""Weight [d_out, d_in] and bias [d_out]."""
_LARGE_SIDE = 36
_OF_LARGE_IMAGES: tuple[Convolution, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of each layer: those of Mnih et al. (2015)."""
_OF_SMALL_IMAGES: tuple[Convolution, ...] = ((16, 3, 1), (32, 3, 2))


class RecurrentState(NamedTuple):
    """Recurrent state before each frame, f32 [*B, M], and whether an episode starts with it.

    *B is B, or e rows of T steps.
    """

    memory: Tensor
    begins: Tensor


class NetworkInputs(NamedTuple):
    """Inputs of an agent's policy and critic in B frames, f32 [B, d] each; and recurrent state.

    ``legal`` bool [B, N] are its legal actions; None if all are.
    """

    policy: Tensor
    critic: Tensor
    past: RecurrentState | None = None
    legal: Tensor | None = None


@dataclass(frozen=True)
class NetworkInputSpec:
    """Inputs of one network: observations of some agents, and a one-hot agent index.

    Attributes
    ----------
    agent_indices
        The agents' indices.
    spaces
        The agents' spaces.
    identity
        The agent's index and the number of agents; None if it is not an input.
    """

    agent_indices: tuple[int, ...]
    spaces: tuple[AgentSpace, ...]
    identity: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """The number of numbers."""
        identity_size = 0 if self.identity is None else self.identity[1]
        return sum(space.observation_size for space in self.spaces) + identity_size

    def show(self, observation: Tensor) -> Tensor:
        """Select the visible part of observations f32 [B, A, D]: [B, size]."""
        columns = [
            observation[:, index, : space.observation_size]
            for index, space in zip(self.agent_indices, self.spaces, strict=True)
        ]
        if self.identity is not None:
            who, count = self.identity
            one_hot = observation.new_zeros(len(observation), count)
            one_hot[:, who] = 1
            columns.append(one_hot)
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


class AgentInputSpecs(NamedTuple):
    """Those of an agent's two networks."""

    policy: NetworkInputSpec
    critic: NetworkInputSpec

    def show(self, observation: Tensor) -> NetworkInputs:
        """Select the inputs of an agent's networks from observations f32 [B, A, D]."""
        policy_inputs = self.policy.show(observation)
        same = self.policy is self.critic
        return NetworkInputs(
            policy_inputs, policy_inputs if same else self.critic.show(observation)
        )


def agent_input_specs(
    spaces: AgentSpaces, sections: Mapping[str, GymnasiumAgentParameters]
) -> dict[str, AgentInputSpecs]:
    """Return the inputs of each agent's networks."""
    everybody = tuple(range(len(spaces.names))), tuple(spaces.by_name.values())
    input_specs = {}
    for index, (name, space) in enumerate(spaces.by_name.items()):
        section = sections[name]
        identity = (index, len(spaces.names)) if section.observes_agent_id else None
        policy_spec = NetworkInputSpec((index,), (space,), identity)
        input_specs[name] = AgentInputSpecs(
            policy_spec,
            NetworkInputSpec(*everybody, identity) if section.centralised_critic else policy_spec,
        )
    return input_specs


class ControlBody(AgentPart):
    """Body of an agent in an environment: ``num_features`` numbers about each frame."""

    num_features: int
    memory_size: int = 0

    def remember(self, x: Tensor, past: RecurrentState) -> tuple[Tensor, Tensor]:
        """Return features of B frames f32 [B, d], and the memory after them: none by default."""
        return self(x), x.new_zeros(len(x), 0)


class Body(ControlBody):
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


class ConvolutionalBody(ControlBody):
    """Convolutions over the images among the inputs, and a perceptron over their features.

    Images of several agents, and those of a stack of frames, are channels of one. Bytes are scaled
    to [0, 1].
    """

    def __init__(
        self,
        input_spec: NetworkInputSpec,
        parameters: GymnasiumAgentParameters,
        init: Initializer,
        where: str,
    ) -> None:
        super().__init__()
        space = input_spec.spaces[0]
        if any(s.shape != space.shape for s in input_spec.spaces) or space.shape is None:
            raise ParameterError(
                f"{where}.body: a 'cnn' would see observations of the shapes"
                f" {[s.shape for s in input_spec.spaces]}, expected images (of two to four"
                " dimensions) of one shape. Set it to 'perceptron'."
            )
        self.shape = space.shape
        self.scale = 1 / 255 if space.is_bytes else 1.0
        self.activation_name = parameters.activation_function
        self.num_pixels = len(input_spec.spaces) * prod(self.shape)
        self.channels_last = _has_channels_last(self.shape, parameters.image_channels)
        first = self._images(torch.zeros(1, input_spec.size))
        layers = parameters.convolutions
        if not layers:
            is_large = min(first.shape[-2:]) >= _LARGE_SIDE
            layers = _OF_LARGE_IMAGES if is_large else _OF_SMALL_IMAGES
        convolutions: list[nn.Conv2d] = []
        _, channels, height, width = first.shape
        for index, (d_out, kernel, stride) in enumerate(layers):
            if min(height, width) < kernel:
                raise ParameterError(
                    f"{where}.convolutions: the kernel of layer {index + 1} is {kernel} wide, but"
                    f" its input is {height} × {width}; observations are {self.shape}."
                    " Expected smaller kernels or strides, e.g. [[16, 3, 1], [32, 3, 2]]."
                )
            convolutions.append(init.convolution(channels, d_out, kernel, stride))
            channels = d_out
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self.convolutions = nn.ModuleList(convolutions)
        size = channels * height * width + input_spec.size - self.num_pixels
        self.top = Body([size, *parameters.hidden_sizes], init, self.activation_name)
        self.num_features = self.top.num_features

    def forward(self, x: Tensor) -> Tensor:
        """Compute features of x f32 [B, d]: pixels, followed by other inputs."""
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


def _has_channels_last(shape: tuple[int, ...], channels: str) -> bool:
    """Return whether the last dimension is that of colours; of two the smaller one is."""
    if len(shape) == 2:
        return False
    return channels == "last" or (channels == "auto" and shape[-1] <= shape[-3])


def sees_images(input_spec: NetworkInputSpec, parameters: GymnasiumAgentParameters) -> bool:
    """Return whether a network has convolutions."""
    if parameters.body == "auto":
        return all(space.is_image for space in input_spec.spaces)
    return parameters.body == "cnn"


def build_body(
    input_spec: NetworkInputSpec,
    parameters: GymnasiumAgentParameters,
    init: Initializer,
    agent: str,
) -> ControlBody:
    """Build the body of an agent for network inputs, with its memory."""
    body: ControlBody
    if sees_images(input_spec, parameters):
        body = ConvolutionalBody(input_spec, parameters, init, f"agents.{agent}")
    else:
        sizes = [input_spec.size, *parameters.hidden_sizes]
        body = Body(sizes, init, parameters.activation_function)
    recurrence: type[ControlBody] | None = agent_class(RECURRENCES, agent, parameters)
    return body if recurrence is None else recurrence(body, parameters.recurrent_size, init)
