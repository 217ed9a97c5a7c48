"""Causal language models run by transformers, and ``load_model`` for all models."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ratchet.errors import DataError
from ratchet.language_models.engines.adapters import peft_config, without_peft_warnings
from ratchet.language_models.engines.model_folder import (
    CausalModel,
    GenerationCache,
    PlainModel,
    copy_configuration,
)
from ratchet.lazy import PRETRAINED_LOCK, require_packages
from ratchet.models.folders import WEIGHTS_FILE, read_weights
from ratchet.models.llama_shape import LARGEST_PLAIN_MODEL, plain_shape
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LowRankChange
from ratchet.seeding import derive_seed, seeded_globals


class HuggingFaceCache:
    """The key-value cache of a batch, with its padding mask."""

    def __init__(self, past: Any, readable: Tensor) -> None:  # noqa: ANN401 -- transformers' Cache
        self.past = past
        self.readable = readable

    def make_room(self) -> None:
        """Extend the mask for one more token per row."""
        self.readable = torch.cat([self.readable, torch.ones_like(self.readable[:, :1])], dim=1)

    def keep(self, rows: Tensor) -> None:
        """Select these rows, int[B'], in this order; repetitions are allowed."""
        rows = rows.to(self.readable.device)
        self.past.batch_select_indices(rows)
        self.readable = self.readable[rows]

    @property
    def can_append(self) -> bool:
        """Return whether another cache's rows can be appended: if all read tokens are cached."""
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in self.past.layers)

    def append(self, other: HuggingFaceCache) -> None:
        """Append another cache's rows; both end at the same position, the shorter is padded."""
        length = max(self.readable.shape[1], other.readable.shape[1])
        readable = torch.cat([_pad_left(cache.readable, length) for cache in (self, other)])
        first = int(readable.any(0).int().argmax())
        self.readable = readable[:, first:]
        for ours, theirs in zip(self.past.layers, other.past.layers, strict=True):
            for name in ("keys", "values"):
                parts = [_pad_left(getattr(layer, name), length, -2) for layer in (ours, theirs)]
                setattr(ours, name, torch.cat(parts)[..., first:, :])


def read_network(folder: Path, dtype: str) -> Any:  # noqa: ANN401 -- PreTrainedModel
    """Load a model of transformers from a folder, with weights of a type; ``auto``: as stored."""
    try:
        with PRETRAINED_LOCK:
            from transformers import AutoModelForCausalLM

            return AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"transformers cannot load the model in {folder}: {error}") from error


def read_on(model: Any, ids: Tensor, cache: HuggingFaceCache) -> Tensor:  # noqa: ANN401 -- PreTrainedModel
    """Read int[B, T] after the cached tokens; return logits [B, V] of the next token."""
    positions = (cache.readable.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    output = model(
        input_ids=ids,
        attention_mask=cache.readable.long(),
        position_ids=positions,
        past_key_values=cache.past,
        use_cache=True,
        logits_to_keep=1,
    )
    cache.past = output.past_key_values
    logits: Tensor = output.logits[:, -1]
    return logits


@contextlib.contextmanager
def head_input(
    model: Any,  # noqa: ANN401 -- PreTrainedModel
    change: Callable[[Tensor], Tensor],
) -> Iterator[None]:
    """Change the hidden states [B, T, H] from which the model's head computes logits."""

    def changed(_: object, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (change(arguments[0]),)

    # operations after the head, e.g. a soft cap, are still the model's own
    hook = model.get_output_embeddings().register_forward_pre_hook(changed)
    try:
        yield
    finally:
        hook.remove()


def _pad_left(values: Tensor, length: int, dim: int = -1) -> Tensor:
    """Pad a dimension in front with zeros."""
    size = list(values.shape)
    size[dim] = length - size[dim]
    return torch.cat([values.new_zeros(size), values], dim=dim)


class HuggingFaceModel:
    """A model that transformers loads, on a GPU if available.

    Parameters
    ----------
    adapters
        Folders of adapters that are merged into it, in this order.
    training
        In float32 with gradients. Otherwise without gradients, in float64 if it is small; a large
        model keeps its stored type, so that the last bits of its logits, and at times a token,
        depend on the batch.
    """

    end_ids: tuple[int, ...] = ()  # those of its tokenizer are its users'
    device = torch.device("cpu")  # of prompts and logits, wherever the weights are

    def __init__(self, folder: Path, adapters: Sequence[Path] = (), *, training: bool) -> None:
        model = read_network(folder, "auto")
        self.folder = folder
        self._is_adapted = False
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = with_adapters(model, adapters)
        self._model.eval().to(self._device)  # dropout would make training unrepeatable
        if training:
            self._model.float().requires_grad_(True)
        else:
            self._model.requires_grad_(False)
            if self._model.num_parameters() <= LARGEST_PLAIN_MODEL:
                self._model.double()

    @property
    def context_length(self) -> int:
        """Maximal tokens of prompt and completion together."""
        return int(self._model.config.get_text_config().max_position_embeddings)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._model.get_output_embeddings().weight.shape[0])

    def start(self, ids: Tensor, readable: Tensor) -> tuple[Tensor, GenerationCache]:
        """Read prompts padded on the left; return logits [B, V] of the next token."""
        return self._read(ids.to(self._device), HuggingFaceCache(None, readable.to(self._device)))

    def step(self, tokens: Tensor, cache: GenerationCache) -> Tensor:
        """Read one more token per row, int[B]; return logits [B, V] of the next."""
        assert isinstance(cache, HuggingFaceCache)
        cache.make_room()
        return self._read(tokens[:, None].to(self._device), cache)[0]

    def _read(self, ids: Tensor, cache: HuggingFaceCache) -> tuple[Tensor, HuggingFaceCache]:
        return read_on(self._model, ids, cache).cpu(), cache

    def chosen_logits(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return logits [n, V] after positions chosen by bool[B, T], rows padded on the right."""
        chosen = chosen.to(self._device)
        with head_input(self._model, lambda hidden: hidden[chosen][None]):
            logits = self._model(input_ids=ids.to(self._device), use_cache=False).logits
        picked: Tensor = logits[0]
        return picked.cpu()

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last layer's output, [B, T, hidden], of rows without padding."""
        output = self._model(
            input_ids=ids.to(self._device),
            use_cache=False,
            output_hidden_states=True,
            logits_to_keep=1,
        )
        hidden: Tensor = output.hidden_states[-1]
        return hidden.cpu()

    def adapt(self, lora: Lora, seed: int) -> None:
        """Add a randomly initialised adapter; from then on only it is trained."""
        require_packages(["peft"], "LoRA")
        seed = derive_seed(seed, "low-rank change")
        with PRETRAINED_LOCK:
            from peft import get_peft_model

            with seeded_globals(seed), without_peft_warnings():
                self._model = get_peft_model(self._model, peft_config(lora))
        self._is_adapted = True

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable weights."""
        return [weight for weight in self._model.parameters() if weight.requires_grad]

    def save(self, folder: Path) -> None:
        """Write weights and configuration; only the adapter's if the model is adapted."""
        if self._is_adapted:
            self._model.save_pretrained(str(folder), save_embedding_layers=False)
            return
        self._model.save_pretrained(folder)
        copy_configuration(self.folder, folder)


def load_model(
    folder: Path, adapters: Sequence[Path] = (), *, training: bool, shares_prompts: bool = False
) -> CausalModel:
    """Load a model in Hugging Face's layout, in float32 with gradients if ``training``.

    Parameters
    ----------
    folder
        A complete model.
    adapters
        Folders of adapters that are merged into it, in this order.
    shares_prompts
        Whether a small Llama reads shared prefixes once; faster, with different rounding.
    """
    shape = plain_shape(folder)
    if shape is not None:
        model = PlainModel(folder, shape, adapters, training=training)
        model.shares_prompts = shares_prompts
        return model
    return HuggingFaceModel(folder, adapters, training=training)


def with_adapters(model: Any, adapters: Sequence[Path]) -> Any:  # noqa: ANN401 -- PreTrainedModel
    """Merge adapters into a transformers model, the one next to the base first."""
    if not adapters:
        return model
    try:
        with PRETRAINED_LOCK:
            from peft import PeftModel
    except ImportError as error:
        raise DataError(
            "Models that are adapters need PEFT, not installed here. Install it with"
            " `pip install 'ratchet-experiments[finetune]'`."
        ) from error
    with PRETRAINED_LOCK, torch.random.fork_rng():  # new layers draw their initial weights
        for adapter in adapters:
            try:
                with without_peft_warnings():
                    adapted = PeftModel.from_pretrained(model, str(adapter))
                model = adapted.merge_and_unload()
            except (OSError, ValueError, RuntimeError) as error:
                raise DataError(f"PEFT cannot load the adapter in {adapter}: {error}") from error
    return model.requires_grad_(True)  # PEFT has frozen it


def save_merged(base: Path, adapters: Sequence[Path], folder: Path) -> None:
    """Write a complete model with adapters merged into its weights to a new folder."""
    if not adapters:
        shutil.copytree(base, folder)
        return
    if plain_shape(base) is not None:
        copy_configuration(base, folder)
        weights = read_weights(base / WEIGHTS_FILE)
        for adapter in adapters:
            LowRankChange(adapter).merge_into(weights)
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        return
    with PRETRAINED_LOCK:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", use_safetensors=True)
    with_adapters(model, adapters).save_pretrained(folder)
    copy_configuration(base, folder)
