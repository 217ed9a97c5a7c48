"""Shape of a Llama, and the check whether plain torch runs a folder's model; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.models.folders import WEIGHTS_FILE, read_json

LARGEST_PLAIN_MODEL = 50_000_000
"""Parameter limit of models that run in plain torch; they generate in float64."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Hyper-parameters of a Llama, as in ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LlamaShape | None:
        """Read a model's ``config.json``; None if the model is not supported here."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        unknown = (
            config.get("model_type") != "llama"
            or config.get("hidden_act", "silu") != "silu"
            or config.get("attention_bias", False)
            or config.get("mlp_bias", False)
            or rope.get("rope_type", rope.get("type", "default")) != "default"
        )
        if unknown:
            return None
        heads = int(config["num_attention_heads"])
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_hidden_layers=int(config["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            max_position_embeddings=int(config["max_position_embeddings"]),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        )

    def as_config(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        figures = asdict(self)
        theta = figures.pop("rope_theta")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **figures,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "dtype": "float32",
            "use_cache": True,
        }


def plain_shape(folder: Path) -> LlamaShape | None:
    """Return the shape of a model that plain torch runs: a Llama of at most 200 MB.

    None for other models, which run through transformers.
    """
    shape = LlamaShape.of(read_json(folder / "config.json"))
    weights = folder / WEIGHTS_FILE
    is_small = weights.is_file() and weights.stat().st_size <= 4 * LARGEST_PLAIN_MODEL
    return shape if is_small else None
