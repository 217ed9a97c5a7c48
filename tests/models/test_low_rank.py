"""Low-rank changes: trained, written, read and merged, they are W + (α / r) B A."""

import pytest
import torch

from ratchet.errors import DataError
from ratchet.models.folders import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, read_weights
from ratchet.models.llama import PlainLlama
from ratchet.models.llama_shape import LlamaShape
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LlamaAdapter, LowRankChange, compose

SHAPE = LlamaShape(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=16,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    tie_word_embeddings=True,
)


@pytest.fixture
def base():
    llama = PlainLlama(SHAPE)
    llama.initialise(torch.Generator().manual_seed(0))
    return llama


def copied(llama):
    """Return a copy of the weights, which a merge may change in place."""
    return {name: weight.clone() for name, weight in llama.weights().items()}


def adapted(base, folder, seed):
    """Write a random adapter; return the weights that the adapted model computes with."""
    llama = PlainLlama(SHAPE)
    llama.load_weights(base.weights())
    adapter = LlamaAdapter(llama, Lora(rank=2, alpha=6), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in adapter.parameters():
            weight.normal_(generator=generator)
    adapter.save(folder, "base")
    return copied(llama)


def test_an_adapter_is_merged_as_it_was_trained(base, tmp_path):
    expected = adapted(base, tmp_path / "a", 1)
    weights = copied(base)
    LowRankChange(tmp_path / "a").merge_into(weights)
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name])


def test_merging_is_the_formula(base, tmp_path):
    adapted(base, tmp_path / "a", 2)
    tensors = read_weights(tmp_path / "a" / ADAPTER_WEIGHTS_FILE)
    weights, before = copied(base), copied(base)
    LowRankChange(tmp_path / "a").merge_into(weights)
    layer = "model.layers.1.mlp.up_proj"
    a, b = (tensors[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
    expected = before[f"{layer}.weight"].double() + (6 / 2) * b.double() @ a.double()
    torch.testing.assert_close(weights[f"{layer}.weight"].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_chain_of_adapters_is_one_of_their_ranks(base, tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        adapted(base, tmp_path / name, seed)
    folders = [tmp_path / "a", tmp_path / "b"]
    compose(folders, tmp_path / "both")
    chained, at_once = copied(base), copied(base)
    for folder in folders:
        LowRankChange(folder).merge_into(chained)
    whole = LowRankChange(tmp_path / "both")
    whole.merge_into(at_once)
    assert whole.rank == 4
    for name, weight in chained.items():
        torch.testing.assert_close(at_once[name], weight, rtol=1e-4, atol=1e-5)


def test_a_new_adapter_changes_nothing_and_other_kinds_are_refused(base, tmp_path):
    before = copied(base)
    LlamaAdapter(base, Lora(rank=2), seed=0)
    assert all(torch.equal(weight, before[name]) for name, weight in base.weights().items())
    (tmp_path / ADAPTER_CONFIG_FILE).write_text('{"peft_type": "LORA", "r": 2, "use_dora": true}')
    with pytest.raises(DataError, match="use_dora"):
        LowRankChange(tmp_path)
