"""The model that a job or a training session trains: all its weights, or an adapter's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ratchet.language_models.local.adapters import AdapterBase
from ratchet.language_models.local.loading import PlainLanguageModel, best_device
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.models.llama_shape import plain_shape
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LlamaAdapter
from ratchet.seeding import derive_seed


class TrainedModel:
    """A complete model with frozen adapters, of which all weights or a new adapter learn.

    Small Llamas run in plain torch on a CPU, other models in transformers, on a GPU if available.

    Parameters
    ----------
    name
        Id of the model that training starts from, which a new adapter refers to.
    folder, adapters
        That model: a complete model, and the folders of adapters to it, in this order.
    lora
        Size of the new adapter; of rank 0 to train all weights.
    seed
        Seed of the adapter's initial weights.
    shares_prompts
        Whether a small Llama reads prefixes that rows share once; faster, with different rounding.
    saves_memory
        Whether a GPU computes in bfloat16, and a new adapter's base model keeps its stored type
        there; otherwise all is in float32.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        adapters: Sequence[Path],
        lora: Lora,
        seed: int,
        *,
        shares_prompts: bool,
        saves_memory: bool,
    ) -> None:
        self._base: AdapterBase | None = None
        if lora.rank:
            self._base = AdapterBase.of(name, adapters[-1] if adapters else folder)
        self._lora = lora
        self._adapter: LlamaAdapter | None = None
        self.model: LanguageModel
        shape = None if lora.dropout else plain_shape(folder)
        if shape is None:
            self.model = self._read_network(folder, adapters, seed, saves_memory=saves_memory)
            return
        plain = PlainLanguageModel.read(
            folder, shape, torch.device("cpu"), adapters, shares_prompts=shares_prompts
        )
        self.size = plain.num_parameters
        if lora.rank:
            self._adapter = LlamaAdapter(plain.llama, lora, seed)
        self.model = plain

    def _read_network(
        self, folder: Path, adapters: Sequence[Path], seed: int, *, saves_memory: bool
    ) -> LanguageModel:
        from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel
        from ratchet.language_models.local.network import read_network, with_adapters

        files, device = ModelFiles(folder), best_device()
        network = read_network(folder, "auto")
        dtypes = {name: tensor.dtype for name, tensor in network.state_dict().items()}
        self.size = int(network.num_parameters())
        saves_memory = saves_memory and device.type == "cuda"
        if self._base is None or not saves_memory:
            network.float()
        network = with_adapters(network, adapters)
        if self._base is None:
            network.requires_grad_(True)
            model = HuggingFaceLanguageModel(files, network, device, saved_dtypes=dtypes)
        else:
            model = HuggingFaceLanguageModel.with_new_adapter(
                files,
                network,
                device,
                self._lora,
                self._base,
                seed=derive_seed(seed, "low-rank change"),
                base_name=self._base.name,  # not its current path
            )
        if model.should_recompute_activations:
            model.recompute_activations()
        if saves_memory:
            model.compute_in_bfloat16()
        return model

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the weights that are trained, always in the same order."""
        return (self._adapter or self.model).parameters()

    @contextlib.contextmanager
    def dropping_inputs(self) -> Iterator[None]:
        """Apply the adapter's dropout within the block; elsewhere scores are without it."""
        if not self._lora.dropout or isinstance(self.model, PlainLanguageModel):
            yield
            return
        from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

        assert isinstance(self.model, HuggingFaceLanguageModel)
        self.model.set_dropout(is_on=True)
        try:
            yield
        finally:
            self.model.set_dropout(is_on=False)

    def save(self, folder: Path) -> None:
        """Write the model's folder, or the adapter's with a reference to its base."""
        if self._adapter is None or self._base is None:
            self.model.save(folder)
            return
        self._adapter.save(folder, self._base.name)
        self._base.write(folder)
