"""Layers of bodies and heads, initialised from an explicit generator.

Also the normalisation and noise of pooled representations, the normalisation of observations (one
mean and one standard deviation per key, so that relabelling symbols remains a symmetry), and the
check that a network consists of layers of exactly the expected classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from ratchet.agents.actor_critic import Key, Normalizer
from ratchet.algorithms.masks import masked_mean, masked_variance
from ratchet.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from ratchet.agents.parts import AgentInput
    from ratchet.parameters.networks import NetworkAgentParameters

_HOLDERS = (nn.ModuleList, nn.ModuleDict)
"""Containers of parts without any computation."""

Activation = Callable[[Tensor], Tensor]
_LARGE = 2**14
Layer = tuple[Tensor, Tensor | None]
"""Weight and bias of a linear layer, or those of several: [..., d_out, d_in], [..., d_out]."""
_ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
NORMALIZED_KEYS = ("x", "linear_message_history")


def is_unchanged_within(network: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Return whether a network's parts are of exactly these classes and unmodified.

    False if a part has hooks or a custom forward, or a parameter has hooks. Parametrized parts are
    of separate classes, which torch generates.
    """
    if torch_module._has_any_global_hook():  # type: ignore[no-untyped-call] # of torch
        return False
    return _is_unchanged_within(network, kinds)


def _is_unchanged_within(network: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    for parameter in network._parameters.values():
        if parameter is not None and (
            parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        ):
            return False
    for part in network._modules.values():
        if part is None:
            continue
        attributes = vars(part)
        if (
            (type(part) not in kinds and type(part) not in _HOLDERS)
            or "forward" in attributes
            or attributes["_forward_pre_hooks"]
            or attributes["_forward_hooks"]
            or attributes["_backward_pre_hooks"]
            or attributes["_backward_hooks"]
            or not _is_unchanged_within(part, kinds)
        ):
            return False
    return True


def activation(name: str) -> Activation:
    """Return the activation function of a name."""
    if name not in _ACTIVATIONS:
        raise UnknownNameError(f"no activation function {name!r}.{nearest(name, _ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def ready_layers(
    layers: Sequence[Layer], activation_name: str, size: int
) -> tuple[Activation, Sequence[Layer]]:
    """Return linear layers, and the activation between them, that are the fastest for their work.

    On a CPU torch's tanh is slow. Where much goes through (``size`` numbers), there is σ between
    the layers instead: tanh(x) = 2σ(2x) − 1, whose factors and shift go into the weights, which are
    fewer. The activation may work in place.
    """
    if activation_name != "tanh" or size < _LARGE or layers[0][0].device.type != "cpu":
        return activation(activation_name), layers
    ready = []
    for index, (weight, bias) in enumerate(layers):
        if index:
            shift = weight.sum(-1)
            weight, bias = weight * 2, -shift if bias is None else bias - shift
        if index < len(layers) - 1:
            weight, bias = weight * 2, None if bias is None else bias * 2
        ready.append((weight, bias))
    return torch.sigmoid_, ready


@dataclass(frozen=True)
class Initializer:
    """Makes linear layers with weights drawn from one generator.

    Attributes
    ----------
    generator
        On the CPU, so that weights don't depend on the device.
    orthogonal
        Orthogonal weights and zero biases; otherwise both are uniform in ±1/√fan-in.
    gain
        Scale of orthogonal weights.
    """

    generator: torch.Generator
    orthogonal: bool = True
    gain: float = 1.0
    device: str | torch.device = "cpu"

    def linear(self, d_in: int, d_out: int, *, bias: bool = True) -> nn.Linear:
        """Create a linear layer."""
        layer = nn.Linear(d_in, d_out, bias=bias, device="meta").to_empty(device="cpu")
        bound = 1 / math.sqrt(d_in)
        with torch.no_grad():
            if self.orthogonal:
                nn.init.orthogonal_(layer.weight, self.gain, generator=self.generator)
            else:
                layer.weight.uniform_(-bound, bound, generator=self.generator)
            if bias and self.orthogonal:
                layer.bias.zero_()
            elif bias:
                layer.bias.uniform_(-bound, bound, generator=self.generator)
        return layer.to(self.device)

    def convolution(self, d_in: int, d_out: int, kernel: int, stride: int) -> nn.Conv2d:
        """Create a layer of square kernels, whose weights are those of a linear layer."""
        flat = self.linear(d_in * kernel * kernel, d_out)
        layer = nn.Conv2d(d_in, d_out, kernel, stride, device=self.device)
        with torch.no_grad():
            layer.weight.copy_(flat.weight.view(layer.weight.shape))
            cast(Tensor, layer.bias).copy_(flat.bias)
        return layer

    def stacked_linear(
        self, num_layers: int, d_in: int, d_out: int
    ) -> tuple[nn.Parameter, nn.Parameter]:
        """Create weights [L, d_out, d_in] and biases [L, d_out] of L linear layers."""
        layers = [self.linear(d_in, d_out) for _ in range(num_layers)]
        return (
            nn.Parameter(torch.stack([layer.weight.detach() for layer in layers])),
            nn.Parameter(torch.stack([layer.bias.detach() for layer in layers])),
        )

    def stacked_norm(self, num_layers: int, d: int) -> tuple[nn.Parameter, nn.Parameter]:
        """Create the scales (ones) and shifts (zeros) [L, d] of L layer norms."""
        shape = (num_layers, d)
        return (
            nn.Parameter(torch.ones(shape, device=self.device)),
            nn.Parameter(torch.zeros(shape, device=self.device)),
        )

    def vector(self, *shape: int, bound: float = 1.0) -> nn.Parameter:
        """Create a parameter that is uniform in ±``bound``."""
        values = torch.empty(shape).uniform_(-bound, bound, generator=self.generator)
        return nn.Parameter(values.to(self.device))


class Mlp(nn.Module):
    """Linear layers of sizes d_in, hidden …, d_out, with an activation function between them."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation_name: str,
        init: Initializer,
        *,
        last_bias: bool = True,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            init.linear(d_in, d_out, bias=last_bias or index < len(sizes) - 2)
            for index, (d_in, d_out) in enumerate(pairwise(sizes))
        )
        activation(activation_name)  # which exists
        self._activation_name = activation_name

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., d_in] to [..., d_out]."""
        rows = x.reshape(-1, x.shape[-1])
        if not is_unchanged_within(self, (nn.Linear,)):
            return self._call_layers(rows).view(*x.shape[:-1], -1)
        layers = [(layer.weight, layer.bias) for layer in cast(Iterable[nn.Linear], self.layers)]
        size = len(rows) * len(layers[0][0])
        activate, ready = ready_layers(layers, self._activation_name, size)
        for index, (weight, bias) in enumerate(ready):
            rows = F.linear(rows if index == 0 else activate(rows), weight, bias)
        return rows.view(*x.shape[:-1], -1)

    def _call_layers(self, rows: Tensor) -> Tensor:
        """Call layers that are modified, instead of using their weights directly."""
        activate = activation(self._activation_name)
        for index, layer in enumerate(self.layers):
            rows = layer(rows if index == 0 else activate(rows))
        return rows


def batch_norm(norm: nn.BatchNorm1d, rows: Tensor, acts: Tensor | None) -> Tensor:
    """Normalise f32 [b, d] by mean and variance of the rows in ``acts`` bool [b], or all."""
    if acts is None:
        # A single row is its own mean, which torch refuses to normalise.
        return cast(Tensor, norm(rows)) if len(rows) > 1 else norm.bias.expand_as(rows)
    mask = acts.unsqueeze(1).expand_as(rows)
    scale = norm.weight * torch.rsqrt(masked_variance(rows, mask, 0) + norm.eps)
    return (rows - masked_mean(rows, mask, 0)) * scale + norm.bias


class NormAndNoise(nn.Module):
    """Batch norm without running statistics, then Gaussian noise; both optional."""

    def __init__(
        self, parameters: NetworkAgentParameters, d: int, device: str | torch.device = "cpu"
    ) -> None:
        super().__init__()
        self.noise_sigma = parameters.noise_sigma
        self.norm = None
        if parameters.use_batch_norm:
            self.norm = nn.BatchNorm1d(d, track_running_stats=False, device=device)

    def forward(self, pooled: Tensor, inputs: AgentInput) -> Tensor:
        """Map f32 [b, d] to the same; noise, in training only, is from the inputs' generator."""
        if self.norm is not None:
            pooled = batch_norm(self.norm, pooled, inputs.acts)
        if self.noise_sigma and self.training:
            noise = torch.empty_like(pooled)
            noise.normal_(0, self.noise_sigma, generator=inputs.generator)
            pooled = pooled + noise
        return pooled


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
        """Fit mean and (population) standard deviation to frames of any batch size.

        A missing key keeps the identity; a constant one is only shifted.
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
