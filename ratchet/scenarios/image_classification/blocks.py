"""Building blocks of an image body: convolutions, plain and residual, in groups.

A group doubles the channels and brings the image to half its height and width. Shape letters: b
images, c channels, h and w pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.networks.layers import Initializer, activation

if TYPE_CHECKING:
    from ratchet.scenarios.image_classification.parameters import (
        ImageClassificationAgentParameters,
    )


def make_conv2d(
    init: Initializer, c_in: int, c_out: int, kernel_size: int = 1, stride: int = 1
) -> nn.Conv2d:
    """Make a convolution, padded so that stride 1 keeps the size.

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
    """Two convolutions beside a shortcut (He et al. 2016, the basic block), without batch norm.

    The shortcut is a convolution of single pixels where channels or size change.
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
        beside = x if self.shortcut is None else self.shortcut(x)
        return self._activation(beside + self.second(self._activation(self.first(x))))


BLOCKS: dict[str, type[ConvBlock] | type[ResidualBlock]] = {
    "conv2d": ConvBlock,
    "residual_basic": ResidualBlock,
}


class BlockGroup(nn.Module):
    """Blocks one after the other, the first of which doubles the channels, then max-pooling.

    ``grid`` are the height and width that come out, whatever the stride.
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
