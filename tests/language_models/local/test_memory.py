"""The tokens that fit into a device's memory are counted from the model's shape."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from benchmarks.activation_memory import bytes_kept
from ratchet.language_models.local import memory
from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel
from ratchet.language_models.local.memory import fitting_tokens
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.models.layer_shape import LayerShape

SIZES = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 3}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("network_class", "config"),
    [
        (Qwen2ForCausalLM, Qwen2Config(**SIZES, num_attention_heads=8, num_key_value_heads=2)),
        (LlamaForCausalLM, LlamaConfig(**SIZES, num_attention_heads=4, head_dim=32)),
    ],
)
def test_activations_are_counted_as_autograd_keeps_them(folder, network_class, config, dtype):
    network = network_class(config).to(dtype)
    model = HuggingFaceLanguageModel(ModelFiles(folder), network, torch.device("cpu"))
    for _ in range(2):
        assert memory.kept_bytes(model) == pytest.approx(bytes_kept(model), rel=0.05)
        model.recompute_activations()


def fake_model(dtype, **changes):
    """A model of 10,000 weights, of which 9,000 are trained."""
    weights = [torch.nn.Parameter(torch.ones(9000, dtype=dtype)), torch.ones(1000, dtype=dtype)]
    content = {
        "shape": LayerShape(3, 4, 5, 2, 4, 2),
        "dtype": dtype,
        "vocabulary_size": 7,
        "num_parameters": 9000,
        "recomputes_activations": False,
        "keeps_logits": False,
        "device": torch.device("cuda"),
        "num_on_device": 1,
        "sharing": [None],
        "parameters": lambda: weights[:1],
        "all_parameters": lambda: weights,
    }
    return SimpleNamespace(**{**content, **changes})


@pytest.mark.parametrize(
    ("dtype", "of_model", "options", "stored", "token"),
    [
        # float32: norms 2·(12·4 + 4), attention 8·(4 + 2) + 4·2, MLP 16·5; after layers 12·4 + 4
        (torch.float32, {}, {}, 10_000 * 4 + 9000 * 12, 3 * 240 + 52 + 2 * 240),
        (torch.float32, {"recomputes_activations": True}, {}, 148_000, 3 * 16 + 52 + 2 * 240),
        (torch.float32, {"keeps_logits": True}, {}, 148_000, 1252 + 16 * 7),
        (torch.float32, {"sharing": [None] * 4}, {}, 148_000 - 1000 * 4 * 3 // 4, 1252),
        (torch.float32, {}, {"reads": 2}, 148_000, 2 * 1252),
        (torch.float32, {}, {"processes": 4}, 148_000 // 4 + 2 * 10_000 * 4, 1252),
        # bfloat16: norms 2·(8·4 + 4), attention 4·(4 + 2) + 4·2, MLP 8·5; masters have gradients
        (torch.bfloat16, {}, {}, 10_000 * 2 + 9000 * (2 + 8 + 8), 3 * 144 + 36 + 2 * 144),
        # an adapter's inputs are copied: 4·(5·4 + 4 + 5) a layer
        (torch.bfloat16, {"num_parameters": 10_000}, {}, 182_000, 3 * 260 + 36 + 2 * 260),
    ],
)
def test_tokens_fill_what_weights_gradients_and_moments_leave(
    dtype, of_model, options, stored, token
):
    model = fake_model(dtype, **of_model)
    total = round((9 * 4 * 2**26 + 2_000_000) / (0.9 - 1 / 12))
    models = [model, fake_model(dtype, all_parameters=model.all_parameters)]  # shares weights
    for more in (0, 10_000 * dtype.itemsize // options.get("processes", 1)):
        tokens = fitting_tokens(total, model, model.parameters(), models, **options)
        assert tokens == int((2_000_000 - stored - more) / (1.5 * token))
        models.append(fake_model(dtype))
    assert fitting_tokens(10**6, model, model.parameters(), models) == 1


def test_layers_of_experts_and_of_older_architectures_are_described():
    names = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4}
    older = LayerShape.from_config(SimpleNamespace(**names))
    assert older == LayerShape(2, 8, mlp_width=32, heads=4, query_width=8, key_width=8)
    names |= {"num_experts_per_tok": 2, "moe_intermediate_size": 6, "num_key_value_heads": 2}
    experts = LayerShape.from_config(SimpleNamespace(**names, intermediate_size=99, head_dim=4))
    assert experts == LayerShape(2, 8, 12, heads=4, query_width=16, key_width=8, experts=2)
    plain = LayerShape(2, 8, 12, heads=4, query_width=16, key_width=8)
    assert experts.layer_bytes(2) - plain.layer_bytes(2) == 3 * 2 * 8 * 2


def test_memory_counts_on_a_gpu_for_models_that_are_not_small(monkeypatch):
    card = SimpleNamespace(total_memory=123)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    large = {"num_parameters": 10**9}
    assert memory.device_memory(fake_model(torch.float32, **large)) == 123
    assert memory.device_memory(fake_model(torch.float32, num_on_device=2, **large)) == 61
    assert memory.device_memory(fake_model(torch.float32)) is None
    on_cpu = fake_model(torch.float32, device=torch.device("cpu"), **large)
    assert memory.device_memory(on_cpu) is None
