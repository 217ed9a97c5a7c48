"""Small Llamas in plain torch: fast to import, few operations per token."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.language_models.engines.model_folder import GenerationCache, save_llama
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.models.folders import WEIGHTS_FILE, read_weights
from ratchet.models.llama import Cache, PlainLlama
from ratchet.models.llama_shape import LlamaShape
from ratchet.models.prefix_sharing import chosen_logits

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PlainLanguageModel(LanguageModel):
    """A small Llama in float32; all its weights are trained."""

    def __init__(self, files: ModelFiles, llama: PlainLlama, device: torch.device) -> None:
        super().__init__(
            files.tokenizer,
            pad_token_id=files.pad_token_id,
            context_length=llama.shape.max_position_embeddings,
            vocabulary_size=llama.shape.vocab_size,
            device=device,
        )
        self._files = files
        self._llama = llama.to(device)

    @classmethod
    def read(cls, folder: Path, shape: LlamaShape, device: torch.device) -> PlainLanguageModel:
        """Load a model's folder."""
        llama = PlainLlama(shape)
        llama.load_weights(read_weights(folder / WEIGHTS_FILE))
        return cls(ModelFiles(folder), llama, device)

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return the logits after chosen positions; shared prefixes are read once."""
        return chosen_logits(self._llama, ids.to(self.device), chosen.to(self.device))

    def _last_hidden(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self._llama(ids)
        return hidden

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts padded on the left."""
        return self._llama.start(ids, readable)

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row."""
        assert isinstance(cache, Cache)
        return self._llama.step(tokens, cache)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return all weights."""
        return [parameter for parameter in self._llama.parameters() if parameter.requires_grad]

    def reference(self) -> LanguageModel:
        """Return a frozen copy."""
        return self.snapshot()

    def snapshot(self) -> LanguageModel:
        """Return a frozen copy."""
        llama = copy.deepcopy(self._llama).requires_grad_(False)
        return PlainLanguageModel(self._files, llama, self.device)

    @property
    def dtype(self) -> torch.dtype:
        """Always float32."""
        return torch.float32

    def shard(self, mesh: DeviceMesh) -> None:
        """Keep this process's shard of the weights; the few weights are gathered together."""
        from ratchet.language_models.local.sharding import shard_network

        shard_network(self._llama, mesh, methods=("read_behind", "logits"))
        self.device = self._llama.embeddings.device

    def save(self, folder: Path) -> None:
        """Save in Hugging Face's layout."""
        self._files.write(folder)
        save_llama(self._llama, folder)

    def load(self, folder: Path) -> None:
        """Load weights saved by :meth:`save`."""
        self._llama.load_weights(read_weights(folder / WEIGHTS_FILE))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the weights, by their names in transformers."""
        return {name: tensor.cpu().clone() for name, tensor in self._llama.weights().items()}

    def load_state_dict(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights returned by :meth:`state_dict`."""
        self._llama.load_weights(weights)
