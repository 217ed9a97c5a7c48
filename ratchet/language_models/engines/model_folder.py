"""Model folders in Hugging Face's layout: loading and saving."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ratchet.models.folders import WEIGHTS_FILE, read_weights
from ratchet.models.llama import PlainLlama
from ratchet.models.llama_shape import LlamaShape
from ratchet.models.low_rank import LowRankChange
from ratchet.models.prefix_sharing import chosen_hidden

_CONFIGURATION_SUFFIXES = {".json", ".jinja", ".model", ".txt"}


class GenerationCache(Protocol):
    """The key-value cache of a batch."""

    @property
    def can_append(self) -> bool:
        """Return whether another cache's rows can be appended."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Select these rows, int[B'], in this order; repetitions are allowed."""
        ...

    def append(self, other: Any) -> None:  # noqa: ANN401 -- of the same class
        """Append the rows of another cache of the same model."""
        ...


class GeneratingModel(Protocol):
    """A model of this process, as engines use it."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end a message."""
        ...

    @property
    def context_length(self) -> int:
        """Maximal tokens of prompt and completion together."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the vocabulary."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of prompts and logits."""
        ...

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts int[B, T] padded on the left; return the next token's logits [B, V]."""
        ...

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row, int[B]; return the next token's logits [B, V]."""
        ...


class RolloutModel(GeneratingModel, Protocol):
    """A trainer's model, which engines outside the process read from a folder."""

    def save(self, folder: Path) -> None:
        """Save in Hugging Face's layout; an adapter in PEFT's."""
        ...


class CausalModel(RolloutModel, Protocol):
    """A model that a service generates with and trains."""

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return logits [n, V] after positions chosen by bool[B, T], rows padded on the right."""
        ...

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last layer's output, [B, T, hidden], of rows without padding."""
        ...

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable weights."""
        ...


def pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids int64[B, T] and a mask of the tokens that are not padding, bool[B, T]."""
    longest = max(map(len, prompts))
    ids = np.zeros((len(prompts), longest), np.int64)
    readable = np.zeros((len(prompts), longest), np.bool_)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        readable[row, longest - len(prompt) :] = True
    return torch.from_numpy(ids), torch.from_numpy(readable)


def copy_configuration(source: Path, folder: Path) -> None:
    """Copy all files of a model's folder except its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in configuration_files(source):
        shutil.copyfile(file, folder / file.name)


def configuration_files(folder: Path) -> list[Path]:
    """Return all files of a model's folder except its weights."""
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file()
        and not file.name.endswith(".index.json")
        and file.suffix in _CONFIGURATION_SUFFIXES
    ]


class PlainModel:
    """A small Llama in plain torch: for training float32 with gradients, else float64 without."""

    end_ids: tuple[int, ...] = ()  # those of its tokenizer are its users'
    device = torch.device("cpu")
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
        """Maximal tokens of prompt and completion together."""
        return self.llama.shape.max_position_embeddings

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.llama.shape.vocab_size

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts; see :class:`CausalModel`."""
        return self.llama.start(ids, readable)

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row; see :class:`CausalModel`."""
        return self.llama.step(tokens, cache)  # type: ignore[arg-type]

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return logits after chosen positions; see :class:`CausalModel`."""
        if self.shares_prompts:
            return self.llama.logits(chosen_hidden(self.llama, ids, chosen))
        return self.llama.logits(self.llama(ids)[chosen])

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last layer's output; see :class:`CausalModel`."""
        hidden: Tensor = self.llama(ids)
        return hidden

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable weights."""
        return list(self.llama.parameters())

    def save(self, folder: Path) -> None:
        """Write weights and configuration."""
        copy_configuration(self.folder, folder)
        save_llama(self.llama, folder)


def save_llama(llama: PlainLlama, folder: Path) -> None:
    """Write the weights of a small Llama in float32, by their names in transformers."""
    weights = {name: tensor.float() for name, tensor in llama.weights().items()}
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
