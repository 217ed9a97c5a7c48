"""Models with trainable weights, or with a trainable adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from ratchet.language_models.engines.adapters import AdapterBase
from ratchet.language_models.engines.hugging_face_model import HuggingFaceModel, load_model
from ratchet.language_models.engines.model_folder import CausalModel, PlainModel
from ratchet.language_models.service.models import StoredModel
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LlamaAdapter


class Trainable(Protocol):
    """A model that a session trains."""

    @property
    def model(self) -> CausalModel:
        """The model, for scoring and sampling."""
        ...

    @property
    def weights(self) -> list[nn.Parameter]:
        """The trainable weights, always in the same order."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model's folder, or the adapter's with a reference to its base."""
        ...


class WholeModel:
    """A model with all weights trainable."""

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.weights = model.parameters()

    def save(self, folder: Path) -> None:
        """Write the model."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder)


class AdaptedLlama:
    """A small Llama with a trainable adapter."""

    def __init__(self, model: PlainModel, start: StoredModel, lora: Lora, seed: int) -> None:
        self.model = model
        self._start = start
        self._adapter = LlamaAdapter(model.llama, lora, seed)
        self.weights = self._adapter.parameters()

    def save(self, folder: Path) -> None:
        """Write the adapter."""
        self._adapter.save(folder, self._start.id)
        AdapterBase.of(self._start.id, self._start.folder).write(folder)


class AdaptedTransformer:
    """A model of transformers with a trainable adapter of PEFT."""

    def __init__(self, model: HuggingFaceModel, start: StoredModel, lora: Lora, seed: int) -> None:
        model.adapt(lora, seed)
        self.model = model
        self._start = start
        self.weights = model.parameters()

    def save(self, folder: Path) -> None:
        """Write the adapter."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder)
        AdapterBase.of(self._start.id, self._start.folder).write(folder)


def open_trainable(start: StoredModel, lora: Lora, seed: int) -> Trainable:
    """Load a model for training, in float32, with a new adapter if the rank is above 0."""
    torch.set_num_threads(1)  # sums in one order, for equal bits
    model = load_model(start.complete_folder, start.adapters, training=True, shares_prompts=True)
    if not lora.rank:
        return WholeModel(model)
    if isinstance(model, PlainModel):
        return AdaptedLlama(model, start, lora, seed)
    assert isinstance(model, HuggingFaceModel)
    return AdaptedTransformer(model, start, lora, seed)
