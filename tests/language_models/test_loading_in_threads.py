"""Models load in several threads concurrently: imports and creation of models take turns."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ratchet.language_models.local.network import read_network

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for package in ("ratchet", "trainers", "tasks", "flows")
    for path in (ROOT / package).rglob("*.py")
]
AFTER_LOADING = {
    ("transformers.cache_utils", "Cache"),  # slots are built from a model's cache
    ("transformers.cache_utils", "DynamicLayer"),
    ("transformers.modeling_layers", "GradientCheckpointingLayer"),
    ("peft", "get_peft_model_state_dict"),
    ("peft", "LoraConfig"),  # peft_config's callers hold the lock
}
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


FIRST_IMPORTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ratchet.language_models.local.network import read_network, with_adapters

folder = Path(sys.argv[1])
with ThreadPoolExecutor(2) as executor:
    whole = executor.submit(read_network, folder, "float32")
    adapted = executor.submit(with_adapters, object(), [folder])
    print(whole.exception(), adapted.exception())
"""


@pytest.mark.slow
def test_two_threads_of_a_new_process_import_transformers_and_peft(tied):
    command = [sys.executable, "-c", FIRST_IMPORTS, str(tied)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("None PEFT cannot load the adapter in"), done.stdout


@pytest.mark.slow
def test_all_code_that_creates_pretrained_models_holds_the_lock():
    assert unlocked(SOURCES, creating_calls) == []


def test_language_models_import_transformers_and_peft_holding_the_lock():
    packages = (ROOT / "ratchet" / "language_models", ROOT / "ratchet" / "service")
    assert unlocked([path for each in packages for path in each.rglob("*.py")], imports) == []


def unlocked(files, statements):
    return [
        f"{path.relative_to(ROOT)}:{statement.lineno}"
        for path in files
        for statement in statements(ast.parse(path.read_text(encoding="utf-8")))
    ]


def holds_the_lock(node):
    return isinstance(node, ast.With) and any("PRETRAINED_LOCK" in ast.dump(i) for i in node.items)


def imports(node):
    """Yield imports outside blocks that hold the lock; those after a model was loaded are free."""
    if holds_the_lock(node) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node)):
        return
    heavy = isinstance(node, ast.ImportFrom) and re.match("transformers|peft", node.module or "")
    if heavy and (node.module, node.names[0].name) not in AFTER_LOADING:
        yield node
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def creating_calls(node):
    """Yield calls that create models, outside blocks that hold the lock."""
    if holds_the_lock(node):
        return
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        is_model = "Tokenizer" not in name and name.endswith(".from_pretrained")
        if is_model or name == "get_peft_model":
            yield node
    for child in ast.iter_child_nodes(node):
        yield from creating_calls(child)
