"""Networks of transformers: reading from folders, adapters of PEFT, and the key-value cache."""

from __future__ import annotations

import contextlib
import copy
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors.torch import save_file
from torch import Tensor

from ratchet.errors import DataError
from ratchet.language_models.local.adapters import weights_print, without_peft_warnings
from ratchet.language_models.local.model_files import copy_configuration
from ratchet.lazy import PRETRAINED_LOCK
from ratchet.models.folders import WEIGHTS_FILE, read_weights
from ratchet.models.llama_shape import plain_shape
from ratchet.models.low_rank import LowRankChange

_BELOW = "below"  # names of frozen adapters start with it
_SHARED: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
"""Unadapted models whose weights are in use, by folder and digest."""


class HuggingFaceCache:
    """The key-value cache of a batch, with its padding mask."""

    block_size = 1
    least_active = 0.75

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
    def longest(self) -> int:
        """Maximal tokens of an appended row; 0 if not all read tokens are cached."""
        from transformers.cache_utils import DynamicLayer

        is_complete = all(type(layer) is DynamicLayer for layer in self.past.layers)
        return sys.maxsize if is_complete else 0

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
            from transformers.utils.logging import disable_progress_bar

            disable_progress_bar()  # type: ignore[no-untyped-call] # it would break the run's
            return AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"transformers cannot load the model in {folder}: {error}") from error


def read_shared_network(folder: Path, *, larger_than: int) -> Any:  # noqa: ANN401 -- PreTrainedModel
    """Load a model as stored; its weights are those of the folder's model in memory, if any.

    They must not be changed, except by moving all of them to a device. Models with at most
    ``larger_than`` weights share none.
    """
    key = str(folder.resolve()), weights_print(folder)
    unadapted = _SHARED.get(key)
    if unadapted is None:
        unadapted = read_network(folder, "auto")
        if unadapted.num_parameters() <= larger_than:
            return unadapted
        _SHARED[key] = unadapted
    network = copy.deepcopy(unadapted, {id(weight): weight for weight in unadapted.parameters()})
    object.__setattr__(network, "shares_with", unadapted)  # not as a part of the network
    return network


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


def with_adapters(model: Any, adapters: Sequence[Path]) -> Any:  # noqa: ANN401 -- PreTrainedModel
    """Apply frozen adapters to a transformers model, the one next to the base first.

    They are merged into its weights, except into 16-bit ones, which would round small changes away:
    there each layer adds its changes, in float32, to its output. Layers of experts cannot add them
    to an output; models with adapted ones are merged.
    """
    if not adapters:
        return model
    try:
        with PRETRAINED_LOCK:
            from peft import PeftModel
            from peft.tuners.lora.layer import ParamWrapper
    except ImportError as error:
        raise DataError(
            "Models that are adapters need PEFT, not installed here. Install it with"
            " `pip install 'ratchet-experiments[finetune]'`."
        ) from error
    merges = True
    with PRETRAINED_LOCK, torch.random.fork_rng():  # new layers draw their initial weights
        for number, adapter in enumerate(adapters):
            try:
                with without_peft_warnings():
                    adapted = PeftModel.from_pretrained(model, str(adapter), f"{_BELOW}{number}")
                if number == 0:
                    has_experts = any(isinstance(part, ParamWrapper) for part in adapted.modules())
                    merges = has_experts or adapted.dtype.itemsize != 2
                model = adapted.merge_and_unload() if merges else adapted.get_base_model()
            except (OSError, ValueError, RuntimeError) as error:
                raise DataError(f"PEFT cannot load the adapter in {adapter}: {error}") from error
    activate_all_adapters(model)
    return model


def activate_all_adapters(network: Any) -> None:  # noqa: ANN401 -- PreTrainedModel or PeftModel
    """Apply all adapters of a network together; only one with PEFT's default name is trained."""
    with PRETRAINED_LOCK:
        from peft.tuners.lora import LoraLayer
    for layer in network.modules():
        if isinstance(layer, LoraLayer):
            layer.set_adapter([*layer.lora_A, *layer.lora_embedding_A])
    for name, weight in network.named_parameters():
        if f".{_BELOW}" in name:
            weight.requires_grad_(False)


def save_merged(base: Path, adapters: Sequence[Path], folder: Path) -> None:
    """Write a complete model with adapters merged into its weights to a new folder.

    Sums are computed in float32 and rounded once to each weight's type. 16-bit ones lose most of a
    change that is small compared with them.
    """
    if not adapters:
        shutil.copytree(base, folder)
        return
    if plain_shape(base) is not None:
        copy_configuration(base, folder)
        stored = read_weights(base / WEIGHTS_FILE)
        merged = dict(stored)
        for adapter in adapters:
            LowRankChange(adapter).merge_into(merged)
        weights = {name: tensor.to(stored[name].dtype) for name, tensor in merged.items()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        return
    network = read_network(base, "auto")
    dtypes = {name: tensor.dtype for name, tensor in network.state_dict().items()}
    network = with_adapters(network.float(), adapters)
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        tensor.data = tensor.data.to(dtypes.get(name, tensor.dtype))
    network.save_pretrained(folder)
    copy_configuration(base, folder)
