"""Builds the agents of the image-classification scenario from their parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ratchet.agents.building import AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer
from ratchet.scenarios.image_classification.body import BodyShape, ImageBody, ImagePerception
from ratchet.scenarios.image_classification.embeddings import embedding_field
from ratchet.scenarios.image_classification.parameters import (
    ImageClassificationAgentParameters,
)
from ratchet.scenarios.image_classification.sources import latent_grid, read_dataset_name

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


class ImageAgentBuilder(AgentBuilder[ImageClassificationAgentParameters]):
    """Puts the common heads on convolutional bodies."""

    section_class = ImageClassificationAgentParameters

    def build_body(
        self,
        plan: AgentPlan[ImageClassificationAgentParameters],
        init: Initializer,
        read: Collection[str],
    ) -> ImageBody:
        """Make a body."""
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
        """Return how images are made ready."""
        height, width = latent_grid(hyper_params)
        return ImagePerception(height * width)


def backbones(hyper_params: HyperParameters, names: Iterable[str]) -> list[str]:
    """Return the pretrained backbones of some agents; random agents look at nothing."""
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
