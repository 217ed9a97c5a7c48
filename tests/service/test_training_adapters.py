"""Jobs that train adapters or transformers models: losses computed manually, and the scope of
adapters."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from micro_model import trainable_model, write_micro_model
from safetensors.torch import load_file, save_file
from thinking_template import THINKS

from ratchet.language_models.local.adapters import AdapterBase
from ratchet.language_models.local.loading import load_frozen_model
from ratchet.language_models.local.model_files import copy_configuration
from ratchet.language_models.local.network import read_network, with_adapters
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.models.lora import Lora
from ratchet.models.low_rank import LowRankChange
from ratchet.service.training import trained_model
from ratchet.service.training.job_folder import (
    TrainingJob,
    TrainingResult,
    read_training_events,
)
from ratchet.service.training.tokens import read_preferences, read_supervised
from ratchet.service.training.train import train
from ratchet.service.training.trained_model import TrainedModel

pytestmark = pytest.mark.slow

FRESH = """
import sys
from dataclasses import replace
from pathlib import Path
from ratchet.service.training.train import train
train(Path(sys.argv[1]))
"""
ACCEPT, REJECT = "Decision: accept", "Decision: reject"
RANK = 2
ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors", "base.json"}


@pytest.fixture(params=["plain torch", "transformers"])
def _library(request, monkeypatch):
    """The library that runs the model."""
    if request.param == "transformers":
        monkeypatch.setattr(trained_model, "plain_shape", lambda _: None)


@pytest.fixture
def _transformers(monkeypatch):
    monkeypatch.setattr(trained_model, "plain_shape", lambda _: None)


@pytest.fixture(autouse=True)
def _trains_in_float32(monkeypatch):
    """On a GPU jobs train in bfloat16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("base") / "m", scale=0.1)


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    {
        "messages": [
            message("system", "Verifier."),
            message("assistant", "Question: Compare.", weight=0),
            message("user", "add + same 4 5 differ", name="Expert"),
            message("assistant", REJECT, weight=1),
        ]
    },
    {"messages": [message("user", "same"), message("assistant", ACCEPT)]},
    {
        "messages": [
            message("user", "differ"),
            message("assistant", "Question: Compare."),
            message("user", "x"),
            message("assistant", ACCEPT, weight=0),
            message("user", "add"),
            message("assistant", REJECT),
        ]
    },
]
LEARNED = [[REJECT], [ACCEPT], ["Question: Compare.", REJECT]]
READ = [
    f"<|system|>Verifier.<|end|><|assistant|>Question: Compare.<|end|>"
    f"<|user|>Expert\nadd + same 4 5 differ<|end|><|assistant|>{REJECT}<|end|>",
    f"<|user|>same<|end|><|assistant|>{ACCEPT}<|end|>",
    f"<|user|>differ<|end|><|assistant|>Question: Compare.<|end|><|user|>x<|end|>"
    f"<|assistant|>{ACCEPT}<|end|><|user|>add<|end|><|assistant|>{REJECT}<|end|>",
]
PAIRS = [
    {
        "input": {"messages": [message("user", question)]},
        "preferred_output": [message("assistant", better)],
        "non_preferred_output": [message("assistant", worse)],
    }
    for question, better, worse in (("same", ACCEPT, REJECT), ("x", "add", "same 4 5"))
]


def write_job(folder, base, lines, method="supervised", *, seed=3, validate=False, **values):
    folder.mkdir()
    file = folder / "examples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    validation = str(file) if validate else None
    job = TrainingJob("j", method, str(base), str(file), validation, values, seed)
    job.write(folder)
    return job


def weights(folder):
    return load_file(folder / "model.safetensors")


def trained_bytes(folder):
    """Return the trained weights as bytes: the complete model's or the adapter's."""
    (file,) = (folder / "model").glob("*.safetensors")
    return file.read_bytes()


def parts(folder):
    """Return the complete model of a folder and its adapters."""
    base = AdapterBase.read(folder)
    if base is None:
        return folder, []
    whole, adapters = parts(Path(base.folder))
    return whole, [*adapters, folder]


def log_prob(folder, prompt, reply):
    """Compute log-probabilities of a reply's tokens without transformers and TRL."""
    whole, adapters = parts(folder)
    tokenizer, model = ChatTokenizer(whole), load_frozen_model(whole, adapters)
    before, after = tokenizer.encode(prompt), tokenizer.encode(reply)
    logits = model.llama.logits(model.llama(torch.tensor([before + after])))[0]
    scores = logits.log_softmax(-1)
    places = range(len(before), len(before) + len(after))
    return [float(scores[place - 1, token]) for place, token in zip(places, after, strict=True)]


def supervised_loss(folder):
    """Compute the mean loss over messages of weight 1, including their end tokens."""
    scores = []
    for text, replies in zip(READ, LEARNED, strict=True):
        for reply in replies:
            prompt = text[: text.rindex(reply)]
            scores += log_prob(folder, prompt, f"{reply}<|end|>")
    return -sum(scores) / len(scores)


def preference_loss(folder, reference, beta):
    """Compute equation 7 of Rafailov et al. 2023."""
    losses = []
    for pair in PAIRS:
        prompt = f"<|user|>{pair['input']['messages'][0]['content']}<|end|><|assistant|>"
        ratios = []
        for side in ("preferred_output", "non_preferred_output"):
            reply = f"{pair[side][0]['content']}<|end|>"
            new, old = (sum(log_prob(f, prompt, reply)) for f in (folder, reference))
            ratios.append(new - old)
        losses.append(math.log1p(math.exp(-beta * (ratios[0] - ratios[1]))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("thought", ["", "<think>\nHm.\n</think>\n\n"])
def test_a_templates_empty_reasoning_block_is_not_trained(tmp_path, thought):
    base = write_micro_model(tmp_path / "m")
    (base / "chat_template.jinja").write_text(THINKS)
    tokenizer = ChatTokenizer(base)
    asked, reply = message("user", "same"), message("assistant", thought + ACCEPT)
    job = write_job(tmp_path / "s", base, [{"messages": [asked, reply]}])
    (chat,) = read_supervised(Path(job.training_file), tokenizer, 1024)
    learned = tokenizer.encode(f"{thought}{ACCEPT}<|end|>")
    assert learned_ids(chat) == learned
    sides = {"preferred_output": [reply], "non_preferred_output": [message("assistant", REJECT)]}
    job = write_job(tmp_path / "p", base, [{"input": {"messages": [asked]}, **sides}], "dpo")
    (pair,) = read_preferences(Path(job.training_file), tokenizer, 1024)
    assert learned_ids(pair.preferred) == learned
    empty = "<think>\n\n</think>\n\n" if thought else ""
    assert learned_ids(pair.non_preferred) == tokenizer.encode(f"{empty}{REJECT}<|end|>")


def learned_ids(sequence):
    return [token for token, weight in zip(sequence.ids, sequence.weights, strict=True) if weight]


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("rank", [0, RANK])
def test_supervised_loss_is_over_the_weighted_tokens(base, tmp_path, rank):
    folder = tmp_path / "j"
    write_job(folder, base, CHATS, n_epochs=2, lora_rank=rank, learning_rate_multiplier=3.0)
    train(folder)
    first, second = read_training_events(folder)[0]  # one batch with all examples
    assert first.train_loss == pytest.approx(supervised_loss(base), rel=1e-5)
    after_a_step = supervised_loss(folder / "checkpoints" / "step-1")
    assert second.train_loss == pytest.approx(after_a_step, rel=1e-5)
    assert after_a_step < first.train_loss - 0.01


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("rank", [0, RANK])
def test_preference_loss_is_dpo_with_the_initial_model_as_reference(base, tmp_path, rank):
    folder, values = tmp_path / "j", {"n_epochs": 3, "beta": 0.7, "supervised_weight": 0}
    write_job(folder, base, PAIRS, "dpo", lora_rank=rank, **values)
    train(folder)
    events, _ = read_training_events(folder)
    assert events[0].train_loss == pytest.approx(math.log(2), rel=1e-6)
    for event, step in zip(events[1:], (1, 2), strict=True):
        trained = folder / "checkpoints" / f"step-{step}"
        expected = preference_loss(trained, base, 0.7)
        assert event.train_loss == pytest.approx(expected, rel=1e-4)
        assert event.train_loss < math.log(2) - 0.001
    assert events[-1].metrics["reward_accuracy"] == 1.0


@pytest.mark.usefixtures("_library")
def test_lora_changes_only_linear_layers_by_a_low_rank(base, tmp_path):
    folder = tmp_path / "j"
    write_job(folder, base, CHATS, n_epochs=4, lora_rank=RANK, lora_alpha=3, batch_size=1)
    train(folder)
    assert {path.name for path in (folder / "model").iterdir()} == ADAPTER_FILES
    config = json.loads((folder / "model" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["base_model_name_or_path"]) == ("LORA", base.name)
    merged = trainable_model(base, [folder / "model"])
    before, after = weights(base), merged.llama.weights()
    adapter = load_file(folder / "model" / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    for name, old in before.items():
        change = after[name] - old
        if "_proj." not in name:
            assert not change.any(), name
            continue
        assert torch.linalg.matrix_rank(change, rtol=1e-3) == RANK, name
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = (adapter[f"{layer}.lora_{part}.weight"] for part in "AB")
        torch.testing.assert_close(change, 3 / RANK * b @ a, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "method", ["supervised", pytest.param("dpo", marks=pytest.mark.exhaustive)]
)
def test_weights_are_bitwise_reproducible_in_a_new_process(base, tmp_path, method):
    lines = [*CHATS, *CHATS] if method == "supervised" else [*PAIRS, *PAIRS]
    values = {"batch_size": 2, "lora_rank": RANK, "lora_dropout": 0.2}
    for name, seed in (("here", 3), ("other", 4), ("fresh", 3)):
        write_job(tmp_path / name, base, lines, method, seed=seed, **values)
    train(tmp_path / "other")
    train(tmp_path / "here")
    fresh = [sys.executable, "-c", FRESH, str(tmp_path / "fresh")]
    subprocess.run(fresh, check=True, capture_output=True, timeout=300)
    found = {name: trained_bytes(tmp_path / name) for name in ("here", "other", "fresh")}
    assert found["here"] == found["fresh"]
    assert found["here"] != found["other"]


@pytest.mark.usefixtures("_transformers")
def test_events_result_and_checkpoints(base, tmp_path):
    folder = tmp_path / "j"
    write_job(folder, base, [*CHATS, *CHATS], n_epochs=2, batch_size=4, validate=True)
    train(folder)
    events, _ = read_training_events(folder)
    assert [(event.step, event.total_steps, event.epoch) for event in events] == [
        (1, 4, 0.5),
        (2, 4, 1.0),
        (3, 4, 1.5),
        (4, 4, 2.0),
    ]
    assert ["valid_loss" in event.metrics for event in events] == [False, True] * 2
    assert events[3].metrics["valid_loss"] == pytest.approx(
        supervised_loss(folder / "model"),
        rel=1e-5,
    )
    result = TrainingResult.read(folder)
    tokens = sum(len(ChatTokenizer(base).encode(text)) for text in READ)
    assert (result.steps, result.trained_tokens) == (4, 4 * tokens)
    assert result.hyperparameters == {
        "n_epochs": 2,
        "batch_size": 4,
        "learning_rate_multiplier": 1.0,
    }
    last = [event.train_loss for event in events[2:]]
    assert result.train_loss == pytest.approx(sum(last) / 2)
    (checkpoint,) = result.checkpoints
    assert (checkpoint.step, checkpoint.train_loss) == (2, events[1].train_loss)
    assert (folder / checkpoint.folder / "tokenizer.json").is_file()
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds <= {".json", ".jsonl", ".jinja", ".safetensors"}  # no pickle anywhere


@pytest.mark.usefixtures("_library")
def test_restarting_a_job_in_its_folder_gives_the_same_result(base, tmp_path):
    folder = tmp_path / "j"
    write_job(folder, base, CHATS, n_epochs=2, lora_rank=RANK)
    train(folder)
    whole = trained_bytes(folder)
    (folder / "result.json").unlink()
    train(folder)
    assert trained_bytes(folder) == whole
    assert len(read_training_events(folder)[0]) == 2


@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("rank", [0, RANK])
def test_half_precision_models_without_a_template_keep_their_type_and_learn(tmp_path, rank):
    base = write_micro_model(tmp_path / "m", scale=0.1)
    half = {name: tensor.bfloat16() for name, tensor in weights(base).items()}
    save_file(half, base / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    (base / "chat_template.jinja").unlink()
    folder = tmp_path / "j"
    write_job(folder, base, CHATS, n_epochs=6, lora_rank=rank, learning_rate_multiplier=3.0)
    train(folder)
    whole, adapters = parts(folder / "model")
    trained = weights(whole)
    assert {tensor.dtype for tensor in trained.values()} == {torch.bfloat16}
    for adapter in adapters:
        LowRankChange(adapter).merge_into(trained)
    assert any((trained[name] != tensor).any() for name, tensor in half.items())
    events, _ = read_training_events(folder)
    assert events[-1].train_loss < events[0].train_loss - 0.1


def test_an_adapter_to_an_adapter_equals_one_to_the_merged_model(tmp_path):
    """Training on an adapter equals training on the model that PEFT merged it into."""
    base = write_micro_model(tmp_path / "m", scale=0.1)
    values = {"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 5.0, "lora_rank": RANK}
    write_job(tmp_path / "first", base, CHATS, **values)
    train(tmp_path / "first")
    first = tmp_path / "first" / "model"
    whole = tmp_path / "whole"
    merged_by_peft(base, [first]).save_pretrained(whole)
    copy_configuration(base, whole)

    values |= {"lora_dropout": 0.2}
    write_job(tmp_path / "after_whole", whole, PAIRS, "dpo", **values)
    job = write_job(tmp_path / "after_adapter", base, PAIRS, "dpo", **values)
    replace(job, base_model="first", adapters=[str(first)]).write(tmp_path / "after_adapter")
    train(tmp_path / "after_whole")
    train(tmp_path / "after_adapter")
    assert trained_bytes(tmp_path / "after_whole") == trained_bytes(tmp_path / "after_adapter")

    second = tmp_path / "after_adapter" / "model"
    assert AdapterBase.read(second).name == "first"
    assert parts(second) == (base, [first, second])
    as_before = merged_by_peft(whole, [tmp_path / "after_whole" / "model"]).state_dict()
    now = trainable_model(base, [first, second]).llama.weights()
    assert all(torch.equal(now[name], as_before[name]) for name in now)
    through_peft = with_adapters(read_network(base, "auto"), [first, second]).state_dict()
    assert all(torch.equal(through_peft[name], tensor) for name, tensor in now.items())


def merged_by_peft(base, adapters):
    """Merge an adapter into its base with PEFT and write the complete model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    for adapter in adapters:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return model


@pytest.mark.usefixtures("_library")
def test_all_weights_of_an_adapted_model_can_be_trained(base, tmp_path):
    write_job(tmp_path / "first", base, CHATS, lora_rank=RANK, learning_rate_multiplier=3.0)
    train(tmp_path / "first")
    first = tmp_path / "first" / "model"
    job = write_job(tmp_path / "second", base, CHATS, n_epochs=1)
    replace(job, base_model="first", adapters=[str(first)]).write(tmp_path / "second")
    train(tmp_path / "second")
    (event,) = read_training_events(tmp_path / "second")[0]
    assert event.train_loss == pytest.approx(supervised_loss(first), rel=1e-5)
    assert AdapterBase.read(tmp_path / "second" / "model") is None
    assert supervised_loss(tmp_path / "second" / "model") < supervised_loss(first)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(("method", "kinds"), [("supervised", CHATS), ("dpo", PAIRS)])
@pytest.mark.parametrize("micro", [2, 4])
def test_micro_batches_give_the_same_step(base, tmp_path, method, kinds, micro):
    lines = (kinds * 7)[:14]  # batches of 8 and 6; with micro-batches of 4, the last has 2
    values = {"batch_size": 8, "n_epochs": 2, "lora_rank": RANK, "learning_rate_multiplier": 0.3}
    for name, more in (("whole", {}), ("parts", {"micro_batch_size": micro})):
        write_job(tmp_path / name, base, lines, method, **values, **more)
        train(tmp_path / name)
    one, other = (
        load_file(tmp_path / name / "model" / "adapter_model.safetensors")
        for name in ("whole", "parts")
    )
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-5)
    told, again = (read_training_events(tmp_path / name)[0] for name in ("whole", "parts"))
    assert len(told) == len(again) == 4
    for event, same in zip(told, again, strict=True):
        assert same.train_loss == pytest.approx(event.train_loss, rel=1e-4)


@pytest.mark.parametrize("rank", [0, RANK])
def test_saving_memory_changes_gradients_by_rounding_only(base, monkeypatch, rank):
    monkeypatch.setattr(trained_model, "plain_shape", lambda _: None)
    lora, tokenizer = Lora(rank), ChatTokenizer(base)
    ids = torch.tensor([tokenizer.encode(READ[0])])
    chosen = torch.ones_like(ids[:, 1:]) > 0
    gradients, reads = [], []
    for saves in (False, True):
        trained = TrainedModel(*("m", base, (), lora, 0), shares_prompts=False, saves_memory=False)
        if saves:
            trained.model.recompute_activations()
            trained.model.compute_in_bfloat16()
        layer = trained.model._whole.model.layers[0].self_attn
        count = []
        layer.register_forward_hook(lambda *_, count=count: count.append(1))
        logits = trained.model.chosen_logits(ids[:, :-1], chosen)
        assert logits.dtype == torch.float32
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][chosen])
        weights = trained.parameters()
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
        assert flat.dtype == torch.float32
        gradients.append(flat)
        reads.append(len(count))
    assert reads[1] == reads[0] + 1, "activations are computed again"
    assert torch.cosine_similarity(*gradients, dim=0) > 0.999
    assert not torch.equal(*gradients)


def test_dropout_applies_to_training_only(base, tmp_path):
    values = {"n_epochs": 2, "lora_rank": RANK, "learning_rate_multiplier": 3.0}
    for name, dropout in (("without", 0.0), ("with", 0.5)):
        folder = tmp_path / name
        write_job(folder, base, CHATS, validate=True, lora_dropout=dropout, **values)
        train(folder)
    (first, second), (_, other) = (
        read_training_events(tmp_path / name)[0] for name in ("with", "without")
    )
    after_a_step = supervised_loss(tmp_path / "with" / "checkpoints" / "step-1")
    assert first.metrics["valid_loss"] == pytest.approx(after_a_step, rel=1e-5)
    assert abs(second.train_loss - after_a_step) > 1e-4
    assert second.train_loss != pytest.approx(other.train_loss, rel=1e-4)
