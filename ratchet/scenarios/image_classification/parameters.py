"""Parameters of the image-classification scenario. Light: no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt, model_validator

from ratchet.parameters.base import (
    SubParameters,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.networks import NetworkAgentParameters
from ratchet.parameters.purposes import AGENT, SCENARIO


@register_agent_parameters("image_classification")
class ImageClassificationAgentParameters(NetworkAgentParameters, read_for=AGENT):
    """Body and heads of an agent that sees an image.

    ``pretrained_embeddings_model`` is a vision backbone of ``transformers``: a folder, or
    ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` on the hub. Max-pooling maps the output of each
    group of the body to the same grid.

    - ``building_block_type``: kind of layer in a group of the body.
    - ``num_blocks_per_group``: number of layers in a group of the body, each of kind
      ``building_block_type``.
    - ``kernel_size``: kernel of the convolutions; an odd number.
    - ``stride``: stride of the first convolution of each group of the body.
    - ``pretrained_embedding_channels``: number of channels that the features of
      ``pretrained_embeddings_model`` are projected to, before they are concatenated with the
      body's.
    - ``d_latent_pixel_selector``: width of the head that selects a latent pixel.
    - ``num_latent_pixel_selector_layers``: number of layers of the head that selects a latent
      pixel.
    """

    building_block_type: Literal["conv2d", "residual_basic"] = "conv2d"
    num_blocks_per_group: PositiveInt = 2
    kernel_size: PositiveInt = 3
    stride: PositiveInt = 1
    pretrained_embeddings_model: str | None = None
    pretrained_embedding_channels: PositiveInt = 64
    d_latent_pixel_selector: PositiveInt = 16
    num_latent_pixel_selector_layers: PositiveInt = 2

    @property
    def message_selector_size(self) -> tuple[int, int]:
        """Those of the latent-pixel selector."""
        return self.d_latent_pixel_selector, self.num_latent_pixel_selector_layers

    @model_validator(mode="after")
    def _check_kernel(self) -> ImageClassificationAgentParameters:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={self.kernel_size}: expected an odd number")
        return self


@register_parameters("image_classification", scenarios=("image_classification",))
class ImageClassificationParameters(SubParameters, read_for=SCENARIO):
    """Parameters shared by all bodies, since they determine the latent pixels.

    ``dataset_seed``, for splits, order and balance, is the
    experiment's seed when not given.

    - ``num_block_groups``: number of groups, each of which halves height and width and doubles the
      channels.
    - ``initial_num_channels``: number of channels before the first group.
    """

    num_block_groups: PositiveInt = 1
    initial_num_channels: PositiveInt = 16
    dataset_seed: NonNegativeInt | None = None
