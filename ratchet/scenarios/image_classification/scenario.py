"""Image classification: provers convince a verifier of an image's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tensordict import TensorDictBase

from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.environment import Environment
from ratchet.scenarios.hub import hash_files
from ratchet.scenarios.image_classification.agents import ImageAgentBuilder, backbones
from ratchet.scenarios.image_classification.backbone import add_embeddings, embedding_fields
from ratchet.scenarios.image_classification.dataset import (
    build_image_datasets,
    latent_grid,
    read_dataset_name,
)
from ratchet.scenarios.registry import register_scenario
from ratchet.scenarios.tensor_scenario import MessageScenario

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.base import ScenarioInstance
    from ratchet.scenarios.dataset import TensorDictDataset


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


@register_scenario("image_classification")
class ImageClassificationScenario(MessageScenario):
    """Agents answer a binary question on an image and name latent pixels to each other."""

    environment_class = ImageClassificationEnvironment
    agent_builder = ImageAgentBuilder

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Create ``train`` and ``test``."""
        return build_image_datasets(hyper_params)

    def needed_packages(self, hyper_params: HyperParameters) -> list[str]:
        """Return ``datasets`` for data on the hub, and ``transformers`` for backbones."""
        _, source, _ = read_dataset_name(hyper_params.dataset)
        handler = build_protocol_handler(hyper_params, base_dir=self.base_dir)
        embeds = bool(backbones(hyper_params, handler.agent_names))
        return ["datasets"] * bool(source.hub_name) + ["transformers"] * embeds

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that makes data only."""
        return (build_image_datasets,)

    def data_files(self, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the hashes of the files of a local copy."""
        _, _, location = read_dataset_name(hyper_params.dataset)
        return {} if location is None else hash_files(Path(location).expanduser())

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Replace folders: of a dataset its kind is left, of a backbone a hash of its files."""
        from ratchet.scenarios.image_classification.backbone import content_name

        parameters = super().without_places(parameters)
        if "dataset" in parameters:
            kind, _, location = read_dataset_name(parameters["dataset"])
            if location is not None and Path(location).expanduser().exists():
                parameters = {**parameters, "dataset": kind}
        agents = {}
        for name, agent in parameters.get("agents", {}).items():
            model = agent.get("pretrained_embeddings_model")
            named = {} if model is None else {"pretrained_embeddings_model": content_name(model)}
            agents[name] = {**agent, **named}
        return {**parameters, "agents": agents}

    def build_instance(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        datasets: Mapping[str, TensorDictDataset],
        trainer_type: str,
    ) -> ScenarioInstance:
        """Embed the images where an agent has a pretrained backbone, then build the rest."""
        models = backbones(hyper_params, protocol_handler.agent_names)
        if models:
            datasets = add_embeddings(datasets, models, settings)
        return super().build_instance(
            hyper_params, settings, protocol_handler, datasets, trainer_type
        )
