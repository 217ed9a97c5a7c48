"""The environment of the image-classification scenario: agents name latent pixels."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from tensordict import TensorDictBase

from ratchet.scenarios.environment import Environment
from ratchet.scenarios.image_classification.embeddings import embedding_fields
from ratchet.scenarios.image_classification.sources import latent_grid


class ImageClassificationEnvironment(Environment):
    """Agents talk about an image by naming the pixels of a coarse grid over it, row by row."""

    data_keys: ClassVar[tuple[str, ...]] = ("image", "pixel_mean", "pixel_std")

    @cached_property
    def num_symbols(self) -> int:
        """Height times width of the grid."""
        height, width = latent_grid(self.hyper_params)
        return height * width

    @cached_property
    def _visible_data(self) -> TensorDictBase:
        return self.dataset.td.select(*self.data_keys, *embedding_fields(self.dataset))
