"""A change of low rank beside the weights of a small Llama, trained instead of them (LoRA).

Each projection W of a layer reads as W + (α / r) B A; A is drawn as PEFT draws it, B is 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ratchet.language_models.service.engine.adapters import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
)
from ratchet.language_models.service.engine.plain_llama import PlainLlama
from ratchet.language_models.service.training.lora import Lora
from ratchet.seeding import torch_generator

_PARTS = {
    "attention_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": ("self_attn.o_proj",),
    "mlp_in": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp_out": ("mlp.down_proj",),
}


class LowRankChange(nn.Module):
    """The change of one parameter, which holds projections one below the other."""

    def __init__(self, sizes: Sequence[int], width: int, lora: Lora) -> None:
        super().__init__()
        self._scale = lora.chosen_alpha / lora.rank
        self.a = nn.Parameter(torch.zeros(len(sizes), lora.rank, width))
        self.b = nn.ParameterList([torch.zeros(size, lora.rank) for size in sizes])

    def draw(self, generator: torch.Generator) -> None:
        """Draw A anew."""
        bound = 1 / math.sqrt(self.a.shape[-1])
        with torch.no_grad():
            self.a.uniform_(-bound, bound, generator=generator)

    def forward(self, weight: Tensor) -> Tensor:
        """Add the change."""
        change = torch.cat([b @ a for a, b in zip(self.a, self.b, strict=True)])
        return weight + self._scale * change


class LlamaAdapter:
    """The changes of all layers of a Llama, whose own weights stay as they are."""

    def __init__(self, llama: PlainLlama, lora: Lora, seed: int) -> None:
        self._lora = lora
        self._changes: dict[str, LowRankChange] = {}
        llama.requires_grad_(False)
        s = llama.shape
        queries, keys = (n * s.head_dim for n in (s.num_attention_heads, s.num_key_value_heads))
        sizes = {
            "attention_in": [queries, keys, keys],
            "attention_out": [s.hidden_size],
            "mlp_in": [s.intermediate_size] * 2,
            "mlp_out": [s.hidden_size],
        }
        for number, layer in enumerate(llama.layers):
            for name in _PARTS:
                width = getattr(layer, name).shape[1]
                change = LowRankChange(sizes[name], width, lora)
                change.draw(torch_generator(seed, "low-rank change", number, name))
                parametrize.register_parametrization(layer, name, change)
                self._changes[f"{number}.{name}"] = change

    def parameters(self) -> list[nn.Parameter]:
        """What training changes, in an order that is always the same."""
        return [weight for change in self._changes.values() for weight in change.parameters()]

    def save(self, folder: Path, base_name: str) -> None:
        """Write it in PEFT's layout."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        for place, change in self._changes.items():
            number, name = place.split(".")
            for part, a, b in zip(_PARTS[name], change.a, change.b, strict=True):
                layer = f"base_model.model.model.layers.{number}.{part}"
                tensors[f"{layer}.lora_A.weight"] = a.detach().clone()
                tensors[f"{layer}.lora_B.weight"] = b.detach().clone()
        save_file(tensors, folder / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt"})
        targets = sorted(part.rpartition(".")[2] for parts in _PARTS.values() for part in parts)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_name,
            "r": self._lora.rank,
            "lora_alpha": self._lora.chosen_alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": targets,
        }
        (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(config, indent=1), "utf-8")
