"""Bytes that the backward pass of a language model keeps, with and without recomputation.

For the shapes of Qwen2 0.5 B and 1.5 B in bfloat16, with random weights, on the CPU: compares the
tensors that autograd saves in the forward pass, without the weights, with the formula that sizes
micro-batches. Run with ``python benchmarks/activation_memory.py``; takes 10 GB and four minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel
from ratchet.language_models.local.memory import kept_bytes
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.small_models import make_small_model

ROWS, LENGTH = 2, 48
SHAPES = {  # width, of the MLP, layers, heads
    "0.5 B": (896, 4864, 24, 14),
    "1.5 B": (1536, 8960, 28, 12),
}


def main() -> None:
    """Print the megabytes per token."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tokenizer"
        make_small_model(folder, alphabet="abc")
        files = ModelFiles(folder)
    for name, (width, mlp_width, layers, heads) in SHAPES.items():
        config = Qwen2Config(
            vocab_size=151_936,
            hidden_size=width,
            intermediate_size=mlp_width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        network = Qwen2ForCausalLM(config).bfloat16()
        model = HuggingFaceLanguageModel(files, network, torch.device("cpu"))
        for recomputes in (False, True):
            if recomputes:
                model.recompute_activations()
            counted, formula = bytes_kept(model) / 1e6, kept_bytes(model) / 1e6
            print(f"{name}, {recomputes=}: {counted:.3f} MB a token, by the formula {formula:.3f}")


def bytes_kept(model: HuggingFaceLanguageModel) -> float:
    """Return the bytes a token that scoring rows' last tokens keeps for the backward pass."""
    ids = torch.randint(1000, (ROWS, LENGTH))
    mask = torch.ones_like(ids)
    chosen = torch.zeros_like(ids)
    chosen[:, -1] = 1
    model.score(ids, mask, chosen)  # finds out whether the head is the last operation
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = model.score(ids, mask, chosen)
    assert scores.log_probs.requires_grad
    return sum(sizes.values()) / (ROWS * (LENGTH - 1))  # the last token is not read


if __name__ == "__main__":
    main()
