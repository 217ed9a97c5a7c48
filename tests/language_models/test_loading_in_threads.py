"""Models load in several threads at once: transformers replaces global functions meanwhile."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ratchet.language_models.engines.hugging_face_model import read_network

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
ROUNDS = 10


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Return the folder of a small model whose output layer is its embedding."""
    config = transformers.Qwen2Config(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("tied")
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def test_tied_models_load_in_two_threads_and_afterwards(tied):
    original = transformers.PreTrainedModel.tie_weights
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(2) as executor:
            networks = list(executor.map(lambda _: read_network(tied, "float32"), range(2)))
        for network in networks:
            assert network.lm_head.weight is network.model.embed_tokens.weight
            assert network.lm_head.weight.device.type == "cpu"
    assert transformers.PreTrainedModel.tie_weights is original
    assert torch.get_default_dtype() == torch.float32


def test_all_code_that_creates_pretrained_models_holds_the_lock():
    unlocked = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for package in ("ratchet", "trainers", "tasks", "flows")
        for path in (ROOT / package).rglob("*.py")
        for call in creating_calls(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert unlocked == []


def creating_calls(node):
    """Yield calls that create models, outside blocks that hold the lock."""
    if isinstance(node, ast.With) and any("PRETRAINED_LOCK" in ast.dump(i) for i in node.items):
        return
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        is_model = "Tokenizer" not in name and name.endswith(".from_pretrained")
        if is_model or name == "get_peft_model":
            yield node
    for child in ast.iter_child_nodes(node):
        yield from creating_calls(child)
