"""Low-rank changes of linear layers, W + (α / r) B A (LoRA, Hu et al. 2021), in PEFT's layout.

Small Llamas train and merge them here; other models through PEFT.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ratchet.errors import DataError
from ratchet.models.folders import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    read_json,
    read_weights,
)
from ratchet.models.llama import PlainLlama
from ratchet.models.lora import Lora
from ratchet.seeding import torch_generator

_PREFIX = "base_model.model."
_TARGETS = "target_modules"
_A, _B = ".lora_A.weight", ".lora_B.weight"
_UNSUPPORTED = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern")
_LLAMA_LAYERS = {
    "attention_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": ("self_attn.o_proj",),
    "mlp_in": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp_out": ("mlp.down_proj",),
}


class LowRankChange:
    """The change of each linear layer, read from an adapter's folder."""

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / ADAPTER_CONFIG_FILE)
        unknown = [name for name in _UNSUPPORTED if config.get(name)]
        if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or unknown:
            raise DataError(f"{folder}: got {unknown or config.get('peft_type')}, expected LoRA.")
        self.rank = int(config["r"])
        self.scale = float(config["lora_alpha"]) / self.rank
        self.config = config
        tensors = read_weights(folder / ADAPTER_WEIGHTS_FILE)
        self.a, self.b = (
            {
                name.removeprefix(_PREFIX).removesuffix(end): tensor
                for name, tensor in tensors.items()
                if name.endswith(end)
            }
            for end in (_A, _B)
        )
        if self.a.keys() != self.b.keys() or len(tensors) != 2 * len(self.a):
            raise DataError(f"{folder}: got {sorted(tensors)}, expected pairs of {_A} and {_B}.")

    def merge_into(self, weights: dict[str, Tensor]) -> None:
        """Add the change to a model's weights by name; 16-bit ones become float32."""
        for layer, a in self.a.items():
            name = f"{layer}.weight"
            shape = (self.b[layer].shape[0], a.shape[1])
            if name not in weights or weights[name].shape != shape:
                raise DataError(f"an adapter changes {layer} {shape}, which its base has not.")
            weights[name] = weights[name] + (self.b[layer] @ a) * self.scale


def compose(adapters: Sequence[Path], folder: Path) -> None:
    """Write a chain of adapters as a single one, whose rank is the sum of theirs.

    Its change is that of the chain up to rounding.
    """
    changes = [LowRankChange(adapter) for adapter in adapters]
    tensors: dict[str, Tensor] = {}
    for layer in sorted(set().union(*(change.a for change in changes))):
        (wide, tall) = next((c.a[layer], c.b[layer]) for c in changes if layer in c.a)
        parts = [
            (change.a[layer], change.b[layer] * change.scale)
            if layer in change.a
            else (
                wide.new_zeros(change.rank, wide.shape[1]),
                tall.new_zeros(len(tall), change.rank),
            )
            for change in changes
        ]
        tensors[f"{_PREFIX}{layer}{_A}"] = torch.cat([a for a, _ in parts], dim=0)
        tensors[f"{_PREFIX}{layer}{_B}"] = torch.cat([b for _, b in parts], dim=1).contiguous()
    rank = sum(change.rank for change in changes)
    config = {**changes[-1].config, "r": rank, "lora_alpha": rank}
    if all(isinstance(change.config.get(_TARGETS), list) for change in changes):
        config[_TARGETS] = sorted(set().union(*(change.config[_TARGETS] for change in changes)))
    _write(folder, tensors, config)


class _Parametrization(nn.Module):
    """The change of one parameter, a stack of projections; A is sampled as in PEFT, B is 0."""

    def __init__(
        self, sizes: Sequence[int], width: int, lora: Lora, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._scale = lora.chosen_alpha / lora.rank
        bound = 1 / math.sqrt(width)
        a = torch.zeros(len(sizes), lora.rank, width).uniform_(-bound, bound, generator=generator)
        self.a = nn.Parameter(a)
        self.b = nn.ParameterList([torch.zeros(size, lora.rank) for size in sizes])

    def forward(self, weight: Tensor) -> Tensor:
        """Add the change."""
        change = torch.cat([b @ a for a, b in zip(self.a, self.b, strict=True)])
        return weight + self._scale * change


class LlamaAdapter:
    """Trainable changes of all layers of a Llama, whose own weights are frozen."""

    def __init__(self, llama: PlainLlama, lora: Lora, seed: int) -> None:
        self._lora = lora
        self._changes: dict[str, _Parametrization] = {}
        llama.requires_grad_(False)
        for number, layer in enumerate(llama.layers):
            for name in _LLAMA_LAYERS:
                width = getattr(layer, name).shape[1]
                generator = torch_generator(seed, "low-rank change", number, name)
                change = _Parametrization(llama.projection_sizes(name), width, lora, generator)
                parametrize.register_parametrization(layer, name, change)
                self._changes[f"{number}.{name}"] = change

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable weights, always in the same order."""
        return [weight for change in self._changes.values() for weight in change.parameters()]

    def save(self, folder: Path, base_name: str) -> None:
        """Write the adapter in PEFT's layout."""
        tensors: dict[str, Tensor] = {}
        for location, change in self._changes.items():
            number, name = location.split(".")
            for part, a, b in zip(_LLAMA_LAYERS[name], change.a, change.b, strict=True):
                layer = f"{_PREFIX}model.layers.{number}.{part}"
                tensors[f"{layer}{_A}"] = a.detach().clone()
                tensors[f"{layer}{_B}"] = b.detach().clone()
        parts = [part for layers in _LLAMA_LAYERS.values() for part in layers]
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_name,
            "r": self._lora.rank,
            "lora_alpha": self._lora.chosen_alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            _TARGETS: sorted(part.rpartition(".")[2] for part in parts),
        }
        _write(folder, tensors, config)


def _write(folder: Path, tensors: dict[str, Tensor], config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(config, indent=1), "utf-8")
