"""Trainable models by name or folder; small Llamas run in plain torch, with few operations."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.adapters import AdapterBase, weights_print
from ratchet.language_models.engines.model_folder import GenerationCache, save_llama
from ratchet.language_models.local.model import Head, LanguageModel
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.model_locations import find_model
from ratchet.models.folders import ADAPTER_CONFIG_FILE, WEIGHTS_FILE, read_weights
from ratchet.models.llama import Cache, PlainLlama
from ratchet.models.llama_shape import LlamaShape, plain_shape
from ratchet.models.lora import Lora
from ratchet.models.prefix_sharing import chosen_hidden

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

WeightType = Literal["float32", "bfloat16", "float16"]


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

    def read_chosen(self, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Head]:
        """Return hidden states at chosen positions; shared prefixes are read once."""
        return chosen_hidden(self._llama, ids, chosen), self._llama.logits

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


def load_language_model(
    name_or_folder: str | Path,
    *,
    base_dir: Path,
    lora: Lora | None = None,
    device: str = "cpu",
    dtype: WeightType = "float32",
    seed: int = 0,
    base: str | None = None,
) -> LanguageModel:
    """Load a model for training, without downloads.

    Parameters
    ----------
    name_or_folder
        A folder in Hugging Face's layout, relative to ``base_dir``, or a folder of an adapter to
        train further; otherwise the name of a model in Hugging Face's cache.
    lora
        Train only an adapter of this size.
    dtype
        Of the weights. Small float32 Llamas run in plain torch, all others in transformers.
    seed
        Seed of a new adapter's weights.
    base
        The base model of an adapter in the folder, as ``name_or_folder``; by default its location
        when the adapter was written.
    """
    folder, torch_device = find_model(name_or_folder, base_dir), torch.device(device)
    is_adapter = (folder / ADAPTER_CONFIG_FILE).is_file()
    adds = lora is not None and lora.rank > 0
    if adds and is_adapter:
        raise ParameterError(
            f"lora: {folder} is already an adapter, which is trained further. Omit lora."
        )
    if lora is not None and lora.dropout:
        raise ParameterError(
            f"lora_dropout: got {lora.dropout}, expected 0: the trainer's log-probabilities would"
            " differ from those of the sampling model."
        )
    if is_adapter or adds:
        from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

        if lora is not None and adds:
            return HuggingFaceLanguageModel.with_new_adapter(
                folder, torch_device, dtype, lora, seed=seed
            )
        adapter_base = AdapterBase.read(folder)
        assert adapter_base is not None
        if base is not None:
            adapter_base = replace(adapter_base, folder=str(find_model(base, base_dir)))
        _check_base(adapter_base, folder)
        return HuggingFaceLanguageModel.with_adapter(folder, adapter_base, torch_device, dtype)
    shape = plain_shape(folder) if dtype == "float32" else None
    if shape is not None:
        return PlainLanguageModel.read(folder, shape, torch_device)
    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

    return HuggingFaceLanguageModel.read(folder, torch_device, dtype)


def _check_base(base: AdapterBase, adapter: Path) -> None:
    if not Path(base.folder).is_dir():
        raise DataError(
            f"the adapter in {adapter} needs the model {base.name} in {base.folder}, which no"
            " longer exists. Restore it."
        )
    if weights_print(Path(base.folder)) != base.weights:
        raise DataError(
            f"the adapter in {adapter} needs the model {base.name} in {base.folder}, which has"
            " different weights now. Restore those that it was trained on."
        )
