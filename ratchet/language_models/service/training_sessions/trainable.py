"""A model whose weights, or a change of low rank beside them, are trained step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from ratchet.language_models.service.engine.adapters import AdapterBase
from ratchet.language_models.service.engine.hugging_face_model import HuggingFaceModel
from ratchet.language_models.service.engine.model_folder import (
    CausalModel,
    PlainModel,
    load_model,
)
from ratchet.language_models.service.models import StoredModel
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LlamaAdapter


class Trainable(Protocol):
    """What a session trains."""

    @property
    def model(self) -> CausalModel:
        """What reads and goes on from tokens."""
        ...

    @property
    def weights(self) -> list[nn.Parameter]:
        """What training changes, in an order that is always the same."""
        ...

    def save(self, folder: Path) -> None:
        """Write it as a model's folder, or an adapter's with what it stands on."""
        ...


class WholeModel:
    """All weights are trained."""

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.weights = model.parameters()

    def save(self, folder: Path) -> None:
        """Write the model."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder)


class AdaptedLlama:
    """An adapter to a small Llama is trained."""

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
    """An adapter that PEFT has made is trained."""

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
    """Read a model for training, in float32, with an adapter drawn from a seed where rank > 0."""
    torch.set_num_threads(1)  # sums come in one order, whatever else the machine does
    model = load_model(start.whole_folder, start.adapters, training=True, shares_prompts=True)
    if not lora.rank:
        return WholeModel(model)
    if isinstance(model, PlainModel):
        return AdaptedLlama(model, start, lora, seed)
    assert isinstance(model, HuggingFaceModel)
    return AdaptedTransformer(model, start, lora, seed)
