"""Trainable models by name or folder; small Llamas run in plain torch, with few operations."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.local.adapters import (
    AdapterBase,
    leave_weights_unchanged,
    weights_print,
)
from ratchet.language_models.local.model import GenerationCache, Head, LanguageModel
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.model_locations import find_model
from ratchet.models.folders import ADAPTER_CONFIG_FILE, WEIGHTS_FILE, read_weights
from ratchet.models.layer_shape import LayerShape
from ratchet.models.llama import Cache, PlainLlama
from ratchet.models.llama_shape import LARGEST_PLAIN_MODEL, LlamaShape, plain_shape
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LowRankChange
from ratchet.models.prefix_sharing import chosen_hidden
from ratchet.seeding import derive_seed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

WeightType = Literal["float32", "bfloat16", "float16"]


class PlainLanguageModel(LanguageModel):
    """A small Llama; all its weights are trained.

    Parameters
    ----------
    shares_prompts
        Whether prefixes that rows share are read once; faster, with different rounding.
    """

    def __init__(
        self,
        files: ModelFiles,
        llama: PlainLlama,
        device: torch.device,
        *,
        shares_prompts: bool = True,
    ) -> None:
        super().__init__(
            files.tokenizer,
            pad_token_id=files.pad_token_id,
            context_length=llama.shape.max_position_embeddings,
            vocabulary_size=llama.shape.vocab_size,
            device=device,
        )
        self._files = files
        self._shares_prompts = shares_prompts
        self.llama = llama.to(device)

    @classmethod
    def read(
        cls,
        folder: Path,
        shape: LlamaShape,
        device: torch.device,
        adapters: Sequence[Path] = (),
        *,
        shares_prompts: bool = True,
    ) -> PlainLanguageModel:
        """Load a model's folder in float32, and merge adapters into its weights."""
        weights = read_weights(folder / WEIGHTS_FILE)
        for adapter in adapters:
            LowRankChange(adapter).merge_into(weights)
        llama = PlainLlama(shape)
        llama.load_weights(weights)
        return cls(ModelFiles(folder), llama, device, shares_prompts=shares_prompts)

    def read_chosen(self, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Head]:
        """Return hidden states at chosen positions."""
        if self._shares_prompts:
            return chosen_hidden(self.llama, ids, chosen), self.llama.logits
        return self._last_hidden(ids)[chosen], self.llama.logits

    def _last_hidden(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.llama(ids)
        return hidden

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts padded on the left."""
        return self.llama.start(ids, readable)

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row."""
        assert isinstance(cache, Cache)
        return self.llama.step(tokens, cache)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return all weights."""
        return [parameter for parameter in self.llama.parameters() if parameter.requires_grad]

    def share_frozen_weights(self, others: Iterable[LanguageModel]) -> None:
        """Do nothing: all weights are trained."""

    def reference(self) -> LanguageModel:
        """Return a frozen copy."""
        return self.snapshot()

    def snapshot(self) -> LanguageModel:
        """Return a frozen copy."""
        llama = copy.deepcopy(self.llama).requires_grad_(False)
        return PlainLanguageModel(
            self._files, llama, self.device, shares_prompts=self._shares_prompts
        )

    def recompute_activations(self) -> None:
        """Do nothing: the model is small."""

    def all_parameters(self) -> list[torch.nn.Parameter]:
        """Return all weights, also frozen ones."""
        return list(self.llama.parameters())

    @property
    def shape(self) -> LayerShape:
        """Sizes of its layers."""
        return LayerShape.from_config(self.llama.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights: float32, or float64 of a frozen model."""
        return self.llama.embeddings.dtype

    def shard(self, mesh: DeviceMesh) -> None:
        """Keep this process's shard of the weights; the few weights are gathered together."""
        from ratchet.language_models.local.sharding import shard_network

        shard_network(self.llama, mesh, methods=("read_behind", "logits"))
        self.device = self.llama.embeddings.device

    def save(self, folder: Path) -> None:
        """Save in Hugging Face's layout."""
        self._files.write(folder)
        self.llama.save(folder)

    def load(self, folder: Path) -> None:
        """Load weights saved by :meth:`save`."""
        self.llama.load_weights(read_weights(folder / WEIGHTS_FILE))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the weights, by their names in transformers."""
        return {name: tensor.cpu().clone() for name, tensor in self.llama.weights().items()}

    def load_state_dict(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights returned by :meth:`state_dict`."""
        self.llama.load_weights(weights)


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
        from ratchet.language_models.local.network import read_network

        if lora is not None and adds:
            return HuggingFaceLanguageModel.with_new_adapter(
                ModelFiles(folder),
                read_network(folder, dtype),
                torch_device,
                lora,
                AdapterBase.of(folder.name, folder),
                seed=derive_seed(seed, "adapter", purpose="weights"),
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


def load_frozen_model(folder: Path, adapters: Sequence[Path] = ()) -> LanguageModel:
    """Load a complete model to sample from, on a GPU if available.

    A small one in float64, so that batching changes no token. A large one keeps its stored type:
    the last bits of its logits, and at times a token, depend on the batch. Large 16-bit models of
    one folder share its weights.

    Parameters
    ----------
    adapters
        Folders of adapters to it, in this order; merged except into 16-bit weights.
    """
    shape = plain_shape(folder)
    if shape is not None:
        model = PlainLanguageModel.read(folder, shape, torch.device("cpu"), adapters)
        model.llama.double().requires_grad_(False)
        return model
    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel
    from ratchet.language_models.local.network import (
        read_network,
        read_shared_network,
        with_adapters,
    )

    if leave_weights_unchanged(folder, tuple(adapters)):
        network = read_shared_network(folder, larger_than=LARGEST_PLAIN_MODEL)
    else:
        network = read_network(folder, "auto")
    is_small = network.num_parameters() <= LARGEST_PLAIN_MODEL
    network = with_adapters(network, adapters).requires_grad_(False)
    if is_small:
        network.double()
    return HuggingFaceLanguageModel(ModelFiles(folder), network, best_device())


def best_device() -> torch.device:
    """Return the first GPU if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
