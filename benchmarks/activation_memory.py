"""Bytes that the backward pass of a language model keeps, with and without recomputation.

Of the shape of Qwen2 0.5 B in bfloat16, with random weights, on the CPU: counts the tensors that
autograd saves in the forward pass, without the weights. Run with
``python benchmarks/activation_memory.py``; takes 4 GB and a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.small_models import make_small_model

ROWS, LENGTH = 2, 48
CONFIG = Qwen2Config(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def main() -> None:
    """Print the megabytes per token."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tokenizer"
        make_small_model(folder, alphabet="abc")
        files = ModelFiles(folder)
    network = Qwen2ForCausalLM(CONFIG).bfloat16()
    model = HuggingFaceLanguageModel(files, network, torch.device("cpu"))
    kept = bytes_kept(model) / (ROWS * LENGTH)
    model.recompute_activations()
    recomputed = bytes_kept(model) / (ROWS * LENGTH)
    print(f"{kept / 1e6:.2f} MB a token, {recomputed / 1e6:.2f} MB with recomputation")


def bytes_kept(model: HuggingFaceLanguageModel) -> int:
    """Return the bytes that scoring the last token of each row keeps for the backward pass."""
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
    return sum(sizes.values())


if __name__ == "__main__":
    main()
