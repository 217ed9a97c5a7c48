"""Models as folders in Hugging Face's layout: reading, writing, and which code runs them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from ratchet.models.folders import WEIGHTS_FILE, read_weights
from ratchet.models.llama import PlainLlama
from ratchet.models.llama_shape import LlamaShape, plain_shape
from ratchet.models.low_rank import LowRankChange
from ratchet.models.prefix_sharing import chosen_logits

_CONFIGURATION_SUFFIXES = {".json", ".jinja", ".model", ".txt"}


class GenerationCache(Protocol):
    """What a model remembers of the rows it is reading."""

    @property
    def can_append(self) -> bool:
        """Whether rows of another can be put behind these."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep these rows, int[B'], in this order; one may be there several times."""
        ...

    def append(self, other: Any) -> None:  # noqa: ANN401 -- of the same class
        """Put the rows of another of the same model behind these."""
        ...


class CausalModel(Protocol):
    """What generation and training ask of a model, whichever code runs it."""

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts [B, T] padded on the left; logits [B, V] of the next token."""
        ...

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row, int[B]; logits [B, V] of the next."""
        ...

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Logits [n, V] after the places chosen by bool[B, T], rows padded on the right."""
        ...

    def hidden(self, ids: Tensor) -> Tensor:
        """What the last layer gives, [B, T, hidden], of rows without padding."""
        ...

    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights that training changes."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and configuration."""
        ...


def load_model(
    folder: Path, adapters: Sequence[Path] = (), *, training: bool, shares_prompts: bool = False
) -> CausalModel:
    """Read a model in Hugging Face's layout, in float32 with gradients if ``training``.

    Parameters
    ----------
    folder
        A whole model.
    adapters
        Folders of adapters that are merged into it, in this order.
    shares_prompts
        Whether a small Llama reads once what rows begin with; that is faster, and rounds otherwise.

    Raises
    ------
    DataError
        If the folder holds no model that can be run.
    """
    shape = plain_shape(folder)
    if shape is not None:
        model = PlainModel(folder, shape, adapters, training=training)
        model.shares_prompts = shares_prompts
        return model
    from ratchet.language_models.service.engine.hugging_face_model import HuggingFaceModel

    return HuggingFaceModel(folder, adapters, training=training)


def copy_configuration(source: Path, folder: Path) -> None:
    """Copy all that a model's folder holds besides its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in configuration_files(source):
        shutil.copyfile(file, folder / file.name)


def configuration_files(folder: Path) -> list[Path]:
    """Return the files that a model's folder holds besides its weights."""
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file()
        and not file.name.endswith(".index.json")
        and file.suffix in _CONFIGURATION_SUFFIXES
    ]


class PlainModel:
    """A small Llama in plain torch: for training float32 with gradients, else float64 without."""

    shares_prompts = False

    def __init__(
        self, folder: Path, shape: LlamaShape, adapters: Sequence[Path] = (), *, training: bool
    ) -> None:
        self.folder = folder
        self.llama = PlainLlama(shape)
        weights = read_weights(folder / WEIGHTS_FILE)
        for adapter in adapters:
            LowRankChange(adapter).merge_into(weights)
        self.llama.load_weights(weights)
        if not training:
            self.llama.double().requires_grad_(False)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        return self.llama.shape.max_position_embeddings

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts; see :class:`CausalModel`."""
        return self.llama.start(ids, readable)

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row; see :class:`CausalModel`."""
        return self.llama.step(tokens, cache)  # type: ignore[arg-type]

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Logits after chosen places; see :class:`CausalModel`."""
        if self.shares_prompts:
            return chosen_logits(self.llama, ids, chosen)
        return self.llama.logits(self.llama(ids)[chosen])

    def hidden(self, ids: Tensor) -> Tensor:
        """What the last layer gives; see :class:`CausalModel`."""
        hidden: Tensor = self.llama(ids)
        return hidden

    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights that training changes."""
        return list(self.llama.parameters())

    def save(self, folder: Path) -> None:
        """Write weights and configuration."""
        copy_configuration(self.folder, folder)
        save_llama(self.llama, folder)


def save_llama(llama: PlainLlama, folder: Path) -> None:
    """Write the weights of a small Llama in float32, by the names that transformers knows."""
    weights = {name: tensor.float() for name, tensor in llama.weights().items()}
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
