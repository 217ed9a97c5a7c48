"""Sizes of a decoder's layers, and the bytes that training keeps of each token in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a model's layers; ``mlp_width`` is that of all experts that read a token."""

    layers: int
    width: int
    mlp_width: int
    heads: int
    query_width: int
    key_width: int
    experts: int = 1

    @classmethod
    def from_config(cls, config: Any) -> LayerShape:  # noqa: ANN401 -- of transformers, or LlamaShape
        """Read a model's configuration."""
        width, heads = config.hidden_size, config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or width // heads
        experts = getattr(config, "num_experts_per_tok", None) or 1
        names = ("moe_intermediate_size", "intermediate_size")
        sizes = [size for name in names if (size := getattr(config, name, None))]
        return cls(
            layers=config.num_hidden_layers,
            width=width,
            mlp_width=experts * (sizes[0] if sizes else 4 * width),
            heads=heads,
            query_width=heads * head_width,
            key_width=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
            experts=experts,
        )

    def layer_bytes(self, size: int, *, is_adapted: bool = False) -> int:
        """Return the bytes that a layer keeps of a token, in a type of ``size`` bytes a number.

        Exact for Qwen2 and Llama with fused attention (``benchmarks/activation_memory.py``); more
        than an adapter's layers keep. Rounded base models copy an adapter's inputs to float32.
        """
        inputs = 5 * self.width + self.query_width + self.mlp_width
        copies = FLOAT32_BYTES * inputs if is_adapted and size < FLOAT32_BYTES else 0
        routed = 3 * size * self.width * self.experts if self.experts > 1 else 0
        attention = 2 * size * (self.query_width + self.key_width) + FLOAT32_BYTES * self.heads
        return 2 * self.norm_bytes(size) + attention + 4 * size * self.mlp_width + routed + copies

    def norm_bytes(self, size: int) -> int:
        """Return the bytes that a norm keeps of a token: it computes in float32."""
        return (FLOAT32_BYTES + 2 * size) * self.width + FLOAT32_BYTES
