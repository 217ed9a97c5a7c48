"""Models of architectures other than Llama are scored and sampled by the same rules."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_model import END, prompts, requests

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import log_prob_differences
from ratchet.language_models.local.loading import load_language_model

pytestmark = pytest.mark.slow

SIZE = {"vocab_size": 15, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ARCHITECTURES = {
    "gpt2": {"vocab_size": 15, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "mistral": {  # ignores tokens before its window
        **SIZE,
        "intermediate_size": 24,
        "num_key_value_heads": 1,
        "sliding_window": 6,
        "head_dim": 8,
    },
    "gemma2": {  # changes its logits after the head
        **SIZE,
        "intermediate_size": 24,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 6,
        "final_logit_softcapping": 2.0,
    },
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request, folder, tmp_path_factory):
    from transformers import AutoConfig, AutoModelForCausalLM

    figures = {**ARCHITECTURES[request.param], "eos_token_id": END, "pad_token_id": 0}
    config = AutoConfig.for_model(request.param, **figures, initializer_range=0.4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config)
    place = tmp_path_factory.mktemp("other") / request.param
    network.save_pretrained(place)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(folder / name, place / name)
    return load_language_model(place, base_dir=Path())


def test_answers_are_those_of_each_request_alone_and_scored_alike(model):
    asked = requests(most=25)
    alone = [InProcessEngine(model).generate([request])[0] for request in asked]
    for size in (5, 256):
        together = InProcessEngine(model, max_batch_size=size).generate(asked)
        assert [c.tokens for c in together] == [c.tokens for c in alone]
    rows = [(*r.prompt, *c.tokens) for r, c in zip(asked, alone, strict=True)]
    width = max(map(len, rows))
    ids = torch.tensor([(*(0,) * (width - len(row)), *row) for row in rows])
    places = torch.arange(width)
    mask = places >= torch.tensor([width - len(row) for row in rows])[:, None]
    chosen = places >= torch.tensor([width - len(c.tokens) for c in alone])[:, None]
    scores = model.score(ids, mask, chosen).log_probs[chosen].tolist()
    sampler = [p for completion in alone for p in completion.log_probs]
    assert log_prob_differences(sampler, scores)["max_abs"] <= 1e-4


def test_slots_are_used_if_all_layers_read_all_positions(model, monkeypatch):
    asked = requests(most=25)
    growing = InProcessEngine(model).generate(asked)
    monkeypatch.setattr(model, "uses_slots", True)
    in_slots = InProcessEngine(model).generate(asked)
    assert [c.tokens for c in in_slots] == [c.tokens for c in growing]
    assert (model._slots is not None) == (model._whole.config.model_type == "gpt2")


def test_logits_at_chosen_places_are_the_models_own(model):
    row = torch.tensor([prompts(1)[0]])
    chosen = torch.arange(row.shape[1])[None] % 2 == 0
    whole = model._network(input_ids=row).logits[chosen]
    np.testing.assert_allclose(
        model.chosen_logits(row, chosen).detach(), whole.detach(), rtol=0, atol=1e-5
    )


def test_recomputed_activations_give_the_same_bits(model, tmp_path):
    model.save(tmp_path / "again")
    again = load_language_model(tmp_path / "again", base_dir=Path())
    again.recompute_activations()
    ids = torch.tensor([[3, 7, 9, 4, 8, 5]])
    mask = torch.ones_like(ids)
    chosen = mask.clone()
    chosen[:, 0] = 0
    gradients, reads = [], []
    for each in (model, again):
        assert each.score(ids, mask, chosen).log_probs.requires_grad  # finds out about the head
        layer = next(m for m in each._whole.modules() if "Attention" in type(m).__name__)
        count = []
        hook = layer.register_forward_hook(lambda *_, count=count: count.append(1))
        loss = each.score(ids, mask, chosen).log_probs.sum() + each.hidden(ids).square().sum()
        gradients.append(torch.autograd.grad(loss, each.parameters()))
        hook.remove()
        reads.append(len(count))
    assert reads == [2, 4]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    asked = requests(most=25)
    assert InProcessEngine(again).generate(asked) == InProcessEngine(model).generate(asked)
