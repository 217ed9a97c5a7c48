"""Models are created, trained, copied, written and read again, bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_model import ALPHABET, ASSISTANT, END, FIRST, USER, prompts, write_small_model
from torch.utils._python_dispatch import TorchDispatchMode

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.model import pad_left
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.network import read_network
from ratchet.language_models.local.small_models import (
    ROLES,
    SmallModelShape,
    make_character_tokenizer,
    make_small_model,
)
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.local.warm_up import Demonstration, warm_up
from ratchet.language_models.types import ChatMessage
from ratchet.models.lora import Lora

SHOWN = [Demonstration(p, (*reversed(p[1:-2]), END)) for p in prompts(64, longest=4)]
WARM_UP = {"learning_rate": 5e-3, "batch_size": 8, "seed": 1}


def read(folder, **options):
    return load_language_model(folder, base_dir=Path(), **options)


def said(model):
    ids = torch.tensor([prompts(1)[0]])
    chosen = torch.arange(ids.shape[1])[None] > 0
    return model.score(ids, torch.ones_like(ids), chosen).log_probs


def change(model, by=0.1):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def check_round_trips(model, folder, again):
    """``again`` reloads the folder."""
    change(model)
    model.save(folder)
    state = model.state_dict()
    wanted = said(model).detach()
    assert torch.equal(said(again(folder)), wanted)
    change(model)
    assert not torch.equal(said(model), wanted)
    model.load(folder)
    assert torch.equal(said(model), wanted)
    change(model)
    model.load_state_dict(state)
    assert torch.equal(said(model), wanted)


def test_a_small_model_is_written_and_read_bit_for_bit(folder, tmp_path):
    check_round_trips(read(folder), tmp_path / "saved", read)
    saved = {file.name for file in (tmp_path / "saved").iterdir()}
    assert saved == {file.name for file in folder.iterdir()}


def test_a_model_is_written_when_the_folder_it_came_from_is_gone(tmp_path):
    folder = write_small_model(tmp_path / "m")
    model = read(folder)
    folder.rename(tmp_path / "elsewhere")
    model.save(tmp_path / "saved")
    assert torch.equal(said(read(tmp_path / "saved")), said(model))


def test_a_reference_stays_as_it_was(plain):
    reference = plain.reference()
    before = said(plain).detach()
    change(plain)
    assert torch.equal(said(reference), before)
    assert not said(reference).requires_grad
    assert reference.parameters() == []
    assert len(plain.parameters()) == 14


def test_the_seed_makes_the_weights_and_the_vocabulary_is_the_alphabet(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_small_model(tmp_path / name, alphabet=ALPHABET, seed=seed)
    weights = {name: load_file(tmp_path / name / "model.safetensors") for name in "abc"}
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(weights["a"][name], weights["b"][name])
    assert not torch.equal(weights["a"][name], weights["c"][name])
    assert weights["a"][name].std() == pytest.approx(0.06, rel=0.05)
    assert weights["a"]["model.embed_tokens.weight"].shape == (15, 64)


def test_characters_are_tokens_and_chats_come_back(folder):
    tokenizer = ChatTokenizer(folder)
    ids = tokenizer.prompt_ids([ChatMessage("user", "abh")])
    assert ids == [USER, FIRST, FIRST + 1, FIRST + 7, END, ASSISTANT]
    assert tokenizer.decode([*ids[1:4], END]) == "abh"
    assert tokenizer.encode("a?b") == [FIRST, 2, FIRST + 1]
    said_by_user = tokenizer.prompt_ids([ChatMessage("user", "a<|end|>")])
    assert said_by_user.count(END) == 1
    assert len(ROLES) == 4


def test_an_alphabet_may_hold_any_character():
    text = " \n.éß😀aA"
    tokenizer = make_character_tokenizer(text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) == len(text) == len(set(ids))
    assert tokenizer.decode(ids) == text


def test_models_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"d_model: got 20 with 4 heads"):
        SmallModelShape(d_model=20)
    with pytest.raises(ParameterError, match="init_scale: got 0"):
        SmallModelShape(init_scale=0.0)
    with pytest.raises(ParameterError, match="at least 1"):
        SmallModelShape(layers=0)
    with pytest.raises(ParameterError, match="alphabet: got no characters"):
        make_small_model(tmp_path / "m", alphabet="")
    with pytest.raises(DataError, match=r"'nowhere'.*no folder.*hf download nowhere"):
        load_language_model("nowhere", base_dir=tmp_path)


def test_weights_of_another_model_are_refused(plain, tmp_path):
    other = read(write_small_model(tmp_path / "wide", d_model=32))
    with pytest.raises(DataError, match="expected the shape"):
        plain.load_state_dict(other.state_dict())


def test_warm_up_learns_answers_and_nothing_else(plain):
    losses = warm_up(plain, SHOWN, steps=60, **WARM_UP)
    assert len(losses) == 60
    assert np.mean(losses[-10:]) < 0.6 * losses[0]


def test_warm_up_is_bit_for_bit_the_same_and_depends_on_its_seed(folder):
    def weights(seed):
        model = read(folder)
        warm_up(model, SHOWN, steps=5, **{**WARM_UP, "seed": seed})
        return model.state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_prompt_is_not_learned(plain):
    """The loss of the first step is that of the completion's tokens only."""
    (shown,) = SHOWN[:1]
    ids = torch.tensor([(*shown.prompt, *shown.answer)])
    chosen = torch.arange(ids.shape[1])[None] >= len(shown.prompt)
    wanted = -plain.score(ids, torch.ones_like(ids), chosen).log_probs[chosen].mean()
    (loss,) = warm_up(plain, [shown], steps=1, **WARM_UP)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)


def test_warm_up_ends_where_the_loss_is_low_enough(folder):
    whole, cut = read(folder), read(folder)
    losses = warm_up(whole, SHOWN, steps=60, **WARM_UP)
    until = float(np.mean(losses[15:20]))
    ended = warm_up(cut, SHOWN, steps=60, until=until, **WARM_UP)
    assert 5 <= len(ended) <= 20
    assert ended == losses[: len(ended)]
    assert np.mean(ended[-5:]) <= until < np.mean(ended[-6:-1])


def test_warm_up_refuses_what_it_cannot_do(plain):
    with pytest.raises(DataError, match="no demonstrations"):
        warm_up(plain, [], steps=1, **WARM_UP)
    with pytest.raises(ParameterError, match="got 0 steps"):
        warm_up(plain, SHOWN, steps=0, **WARM_UP)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_and_writes_the_same(folder):
    from small_model import requests

    from ratchet.language_models.engines.in_process import InProcessEngine

    here, there = read(folder), read(folder, device="cuda")
    torch.testing.assert_close(said(there).cpu(), said(here), rtol=0, atol=1e-4)
    ours = InProcessEngine(here, max_batch_size=7).generate(requests())
    theirs = InProcessEngine(there, max_batch_size=7).generate(requests())
    assert [c.tokens for c in ours] == [c.tokens for c in theirs]
    losses = [warm_up(model, SHOWN, steps=3, **WARM_UP) for model in (here, there)]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-3)
    there.load_state_dict(here.state_dict())
    torch.testing.assert_close(said(there).cpu(), said(here), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_transformers_models_are_written_and_read_bit_for_bit(folder, tmp_path):
    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

    def again(place):
        return HuggingFaceLanguageModel.read(place, torch.device("cpu"), "float32")

    model = again(folder)
    reference, before = model.reference(), said(model).detach()
    check_round_trips(model, tmp_path / "saved", again)
    assert torch.equal(said(reference), before)
    assert reference.parameters() == []
    # and plain torch reads files of transformers
    torch.testing.assert_close(said(read(tmp_path / "saved")), said(again(tmp_path / "saved")))
    with pytest.raises(DataError, match="do not match the model"):
        model.load_state_dict({})


@pytest.mark.slow
def test_an_adapter_is_all_that_is_trained(folder, tmp_path):
    model = read(folder, lora=Lora(rank=2, alpha=6), seed=1)
    base = read(folder)
    torch.testing.assert_close(said(model), said(base), rtol=0, atol=1e-5)
    assert len(model.parameters()) == 28  # two layers of seven projections, two matrices each
    reference, snapshot = model.reference(), model.snapshot()
    check_round_trips(model, tmp_path / "adapter", read)
    torch.testing.assert_close(said(snapshot), said(base), rtol=0, atol=1e-5)
    changed = model.snapshot()
    assert torch.equal(said(changed), said(model))
    assert changed.parameters() == []
    frozen = {p.data_ptr() for p in model._network.parameters() if not p.requires_grad}
    copied = [p for p in changed._network.parameters() if p.data_ptr() not in frozen]
    assert len(copied) == 28  # the base is one
    assert not torch.allclose(said(model), said(base), atol=1e-2)
    torch.testing.assert_close(said(reference), said(base), rtol=0, atol=1e-5)
    assert reference.parameters() == []
    assert len(model.parameters()) == 28  # also after the reference has read
    said(model).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    warm_up(model, SHOWN, steps=2, **WARM_UP)
    with pytest.raises(ParameterError, match="is already an adapter"):
        read(tmp_path / "adapter", lora=Lora(rank=2))


@pytest.mark.slow
def test_an_adapter_has_its_figures_and_its_seed(folder, tmp_path):
    def matrices(seed, **figures):
        lora = Lora(rank=3, target_modules=("q_proj",), **figures)
        model = read(folder, lora=lora, seed=seed)
        model.save(tmp_path / f"{seed}")
        return model.state_dict()

    one, other, again = matrices(1), matrices(2), matrices(1, alpha=9)
    assert all(".q_proj.lora_" in name for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(one[name], again[name]) for name in one)
    config = json.loads((tmp_path / "1" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (3, 9, ["q_proj"])
    assert json.loads((tmp_path / "2" / "adapter_config.json").read_text())["lora_alpha"] == 6
    with pytest.raises(ParameterError, match="lora_dropout"):
        read(folder, lora=Lora(rank=3, dropout=0.1))
    with pytest.raises(DataError, match="PEFT cannot adapt"):
        read(folder, lora=Lora(rank=3, target_modules=("no_such_layer",)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_half_precision_head_is_not_copied_for_each_prompt(folder, dtype):
    model = read(folder, lora=Lora(rank=1), dtype=dtype)
    shapes = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
                shapes.append(args[1].shape)
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), Products():
        logits, _ = model.start(*pad_left(prompts(3), model.device))
    head = (model.shape.width, logits.shape[1])
    assert shapes[-1] == (head if dtype == "bfloat16" else (3, *head))  # as before


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_tied_head_is_saved_once_in_half_precision(folder, tmp_path, is_tied):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = Qwen2Config(
        **sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=is_tied
    )
    network = Qwen2ForCausalLM(config)
    model = HuggingFaceLanguageModel(
        ModelFiles(folder),
        network,
        torch.device("cpu"),
        saved_dtypes=dict.fromkeys(network.state_dict(), torch.bfloat16),
    )
    model.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(config.to_json_string())
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert ("lm_head.weight" in saved) is not is_tied
    for name, tensor in read_network(tmp_path / "saved", "float32").state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name].bfloat16().float()), name


@pytest.mark.slow
def test_a_whole_model_in_half_precision_is_scored_in_float32(folder):
    model = read(folder, dtype="bfloat16")
    assert model.parameters()[0].dtype == torch.bfloat16
    assert said(model).dtype == torch.float32
    torch.testing.assert_close(said(model), said(read(folder)), rtol=0, atol=0.3)
