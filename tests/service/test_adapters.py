"""Adapter models: lookup, merging, and refusal after a change of the base model."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3

import pytest
import torch
from micro_model import ALPHA, RANK, trainable_model, write_adapter, write_micro_model
from safetensors.torch import load_file, save_file

from ratchet.errors import DataError, LanguageServiceError
from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.local.adapters import AdapterBase, weights_print
from ratchet.language_models.local.loading import load_frozen_model
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.types import ChatMessage
from ratchet.service.api.errors import ApiError
from ratchet.service.database import Database
from ratchet.service.export import export_model
from ratchet.service.models import ModelRegistry, StoredModel
from ratchet.service.training.job_folder import TrainingJob
from ratchet.service.training.train import train


@pytest.fixture
def base(tmp_path):
    return write_micro_model(tmp_path / "micro")


@pytest.fixture
def registry(tmp_path, base):
    """Registry with a base model, an adapter to it, and an adapter to that adapter."""
    models = tmp_path / "models"
    for number, (name, below) in enumerate((("first", base), ("second", models / "first"))):
        write_adapter(models / name, base, name, seed=number)
        AdapterBase.of("micro" if below == base else "first", below).write(models / name)
    database = Database(tmp_path / "service.sqlite3")
    with database.transaction() as connection:
        for name in ("first", "second"):
            values = (name, name, 1, "micro", f"job-{name}")
            connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?)", values)
    return ModelRegistry(database, models, StoredModel("micro", base, "micro"))


def test_an_adapter_needs_all_models_below_it(registry, base):
    first, second = registry.get("first"), registry.get("second")
    assert (first.complete_folder, first.adapters) == (base, (first.folder,))
    assert (second.complete_folder, second.adapters) == (base, (first.folder, second.folder))
    whole = registry.get("micro")
    assert (whole.complete_folder, whole.adapters) == (base, ())
    assert second.exists
    shutil.rmtree(first.folder)
    assert not second.exists


def test_answers_equal_the_merged_models_bit_for_bit(registry, base, tmp_path):
    second = registry.get("second")
    weights = load_file(base / "model.safetensors")
    for folder in second.adapters:
        tensors = load_file(folder / "adapter_model.safetensors")
        for name in [name for name in weights if "_proj." in name]:
            layer = f"base_model.model.{name.removesuffix('.weight')}"
            a, b = (tensors[f"{layer}.lora_{part}.weight"] for part in "AB")
            weights[name] = weights[name] + (b @ a) * (ALPHA / RANK)
    merged = shutil.copytree(base, tmp_path / "merged")
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    trained = trainable_model(second.complete_folder, second.adapters).llama.weights()
    assert all(torch.equal(trained[name], tensor) for name, tensor in weights.items())

    engine = TorchEngine()
    engine.load("adapted", second.complete_folder, second.adapters)
    engine.load("merged", merged)
    engine.load("base", base)
    said = {}
    for name in ("adapted", "merged", "base"):
        chat = (ChatMessage("user", "same"),)
        ask = [
            GenerationRequest(name, chat, seed, max_tokens=8, logprobs=True) for seed in range(20)
        ]
        said[name] = engine.generate(ask)
    assert said["adapted"] == said["merged"]
    assert said["adapted"] != said["base"]


def test_changed_weights_below_an_adapter_are_detected(registry, base, tmp_path):
    again = shutil.copytree(base, tmp_path / "elsewhere" / "micro")
    assert weights_print(again) == weights_print(base)
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 1e-6
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ApiError, match="adapter to 'micro', whose weights have changed") as caught:
        registry.get("second")
    assert caught.value.status == 409
    assert str(tmp_path) not in str(caught.value)
    moved = ModelRegistry(
        registry._database, registry.folder, StoredModel("micro", again, "micro")
    )  # the base has moved
    assert moved.get("second").complete_folder == again


def test_a_base_of_another_model_is_not_deleted(registry):
    with pytest.raises(ApiError, match="'second' is an adapter to 'first'") as caught:
        registry.delete("first")
    assert (caught.value.status, caught.value.code) == (409, "model_in_use")
    registry.delete("second")
    registry.delete("first")
    assert [model.id for model in registry.list().data] == ["micro"]
    assert list(registry.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"peft_type": "IA3"}, "expected LoRA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "expected LoRA"),
    ],
)
def test_adapters_of_other_kinds_are_refused(base, tmp_path, config, complaint):
    write_adapter(tmp_path / "adapter", base, "micro", **config)
    with pytest.raises(DataError, match=complaint):
        load_frozen_model(base, [tmp_path / "adapter"])


def test_an_adapter_to_another_shape_is_refused(base, tmp_path):
    tensors = write_adapter(tmp_path / "adapter", base, "micro")
    more = {name.replace("layers.0", "layers.7"): tensor for name, tensor in tensors.items()}
    save_file(more, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"layers.7.* which its base has not"):
        load_frozen_model(base, [tmp_path / "adapter"])


def test_a_model_can_be_exported_without_adapters(registry, base, tmp_path):
    home = tmp_path / "home"
    (home / "llm").mkdir(parents=True)
    shutil.copytree(registry.folder, home / "llm" / "models")
    with contextlib.closing(sqlite3.connect(tmp_path / "service.sqlite3")) as connection:
        connection.execute("VACUUM INTO ?", (str(home / "llm" / "service.sqlite3"),))
    export_model(home, "second", tmp_path / "out" / "second")
    second = registry.get("second")
    now = trainable_model(second.complete_folder, second.adapters).llama.weights()
    written = trainable_model(tmp_path / "out" / "second").llama.weights()
    assert all(torch.equal(written[name], tensor) for name, tensor in now.items())
    assert ChatTokenizer(tmp_path / "out" / "second").end_ids == ChatTokenizer(base).end_ids
    export_model(home, "micro", tmp_path / "out" / "base")
    assert weights_print(tmp_path / "out" / "base") == weights_print(base)
    with pytest.raises(LanguageServiceError, match="already exists"):
        export_model(home, "second", tmp_path / "out" / "second")
    with pytest.raises(ApiError, match="model 'third' does not exist"):
        export_model(home, "third", tmp_path / "out" / "third")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"second", "base"}
    with pytest.raises(LanguageServiceError, match="has no model service"):
        export_model(tmp_path / "nowhere", "second", tmp_path / "out" / "third")


def test_the_plain_trainer_trains_an_adapter_like_the_merged_model(registry, base, tmp_path):
    second = registry.get("second")
    merged = shutil.copytree(base, tmp_path / "merged")
    llama = trainable_model(second.complete_folder, second.adapters).llama
    save_file(llama.weights(), merged / "model.safetensors", metadata={"format": "pt"})
    chat = [{"role": "user", "content": "same"}, {"role": "assistant", "content": "add"}]
    file = tmp_path / "examples.jsonl"
    file.write_text((json.dumps({"messages": chat}) + "\n") * 4)
    trained = []
    for name, whole, adapters in (("a", merged, ()), ("b", base, tuple(map(str, second.adapters)))):
        folder = tmp_path / name
        folder.mkdir()
        TrainingJob(
            *("j", "supervised", str(whole), str(file), None, {"n_epochs": 1}, 3),
            adapters=adapters,
        ).write(folder)
        train(folder)
        trained.append((folder / "model" / "model.safetensors").read_bytes())
    assert trained[0] == trained[1]
    assert AdapterBase.read(tmp_path / "b" / "model") is None
