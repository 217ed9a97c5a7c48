"""Pretrained embeddings are the backbone's, computed once, and stored with their images."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ratchet import ExperimentSettings
from ratchet.errors import DataError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.image_classification.backbone import (
    Backbone,
    Preprocessing,
    add_embeddings,
    embedding_channels,
    embedding_field,
)
from ratchet.scenarios.image_classification.dataset import build_image_datasets
from tasks.tensordict.keys import ArmKeys

SMALL = {"dataset_options__max_train_size": 24, "test_size": 0.02}


@pytest.fixture(scope="module")
def datasets(image_parameters):
    return build_image_datasets(image_parameters(**SMALL))


def settings_in(folder, **changes):
    return ExperimentSettings(home=str(folder), **changes)


def embed(datasets, model, home, **settings):
    added = add_embeddings(datasets, [str(model)], settings_in(home, **settings))
    return {name: data[embedding_field(str(model))] for name, data in added.items()}


def by_hand(model, images):
    """Ask transformers directly."""
    transformers = pytest.importorskip("transformers")
    network = transformers.ResNetModel.from_pretrained(model).eval()
    grey = images.float() / 255
    resized = F.interpolate(grey, size=(16, 16), mode="bilinear", antialias=True)
    pixels = (resized.repeat(1, 3, 1, 1) - 0.5) / 0.25
    with torch.no_grad():
        return network(pixel_values=pixels).last_hidden_state


@pytest.mark.slow
def test_each_images_embedding_is_what_the_backbone_makes_of_it(datasets, tiny_resnet, tmp_path):
    found = embed(datasets, tiny_resnet, tmp_path, pretrained_embeddings_batch_size=7)
    for name, data in datasets.items():
        assert found[name].dtype == torch.float16
        assert found[name].shape == (len(data), embedding_channels(str(tiny_resnet)), 2, 2)
        expected = by_hand(tiny_resnet, data["image"])
        assert torch.allclose(found[name].float(), expected, atol=2e-3)
        assert expected.std() > 0.01


def test_embeddings_are_computed_once_whatever_the_batch_size(
    datasets, tiny_resnet, tmp_path, monkeypatch
):
    first = embed(datasets, tiny_resnet, tmp_path)

    def never(self, images):
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr(Backbone, "embed", never)
        again = embed(datasets, tiny_resnet, tmp_path, pretrained_embeddings_batch_size=5)
    for name in datasets:
        assert torch.equal(first[name], again[name])
    other = embed(datasets, tiny_resnet, tmp_path / "b", pretrained_embeddings_batch_size=5)
    for name in datasets:
        assert torch.allclose(first[name].float(), other[name].float(), atol=2e-3)
    assert not list((tmp_path / "embeddings").glob(".new-*"))


def test_kept_embeddings_are_mapped_and_never_written_to(datasets, tiny_resnet, tmp_path):
    found = embed(datasets, tiny_resnet, tmp_path)["train"]
    (kept,) = [
        path
        for path in (tmp_path / "embeddings").glob("*/embeddings.npy")
        if len(np.load(path, mmap_mode="r")) == len(found)
    ]
    before = kept.read_bytes()
    found += 1
    assert kept.read_bytes() == before


def test_other_images_and_other_weights_have_other_embeddings(datasets, tiny_resnet, tmp_path):
    embed(datasets, tiny_resnet, tmp_path / "home")
    kept = tmp_path / "home" / "embeddings"
    assert len(list(kept.iterdir())) == 2
    transformers = pytest.importorskip("transformers")
    other = tmp_path / "other"
    network = transformers.ResNetModel.from_pretrained(tiny_resnet)
    with torch.no_grad():
        next(network.parameters()).mul_(2)
    network.save_pretrained(other)
    (other / "preprocessor_config.json").write_text(json.dumps({"size": 16}))
    embed({"train": datasets["train"]}, other, tmp_path / "home")
    assert len(list(kept.iterdir())) == 3
    shuffled = type(datasets["train"])(datasets["train"].td[torch.arange(24).flip(0)])
    flipped = embed({"train": shuffled}, tiny_resnet, tmp_path / "home")["train"]
    straight = embed({"train": datasets["train"]}, tiny_resnet, tmp_path / "home")["train"]
    assert torch.allclose(flipped.flip(0).float(), straight.float(), atol=2e-3)


def test_damaged_embeddings_are_not_used(datasets, tiny_resnet, tmp_path):
    embed(datasets, tiny_resnet, tmp_path)
    for path in (tmp_path / "embeddings").glob("*/embeddings.npy"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"are damaged.*Remove the folder"):
        embed(datasets, tiny_resnet, tmp_path)


def test_agents_look_at_their_own_backbones_embeddings(image_parameters, tiny_resnet, tmp_path):
    hyper_params = image_parameters(
        **SMALL,
        interaction_protocol="adp",
        agents__verifier={"pretrained_embeddings_model": str(tiny_resnet)},
    )
    instance = build_scenario_instance(hyper_params, settings_in(tmp_path))
    agents, environment = instance.combined_agents, instance.train_environment
    bodies = {name: agent.body for name, agent in agents.agents.items()}
    assert bodies["prover"].embedding_in is None
    assert bodies["verifier"].embedding_in.out_channels == 64
    ids = torch.arange(6)
    assert embedding_field(str(tiny_resnet)) in list(environment.gather_data(ids).keys())
    td = environment.reset(ids, ids)
    everybody = torch.ones(6, 2, dtype=torch.bool)
    values = agents.values(td, everybody)
    values[:, 1].sum().backward()
    assert bodies["verifier"].embedding_in.weight.grad.abs().sum() > 0
    environment._visible_data[embedding_field(str(tiny_resnet))][3] += 1
    after = agents.values(td, everybody)
    changed = values != after
    assert changed.nonzero().tolist() == [[3, 1]]


def test_a_folders_files_stand_for_the_backbone_in_keys(image_parameters, tiny_resnet, tmp_path):
    def keys_with(folder):
        agents = {"prover": {"pretrained_embeddings_model": str(folder)}}
        keys = ArmKeys("arm", image_parameters(agents=agents, pretrain_agents=True))
        stages = (keys.initial_state(), keys.pretrain("prover"), keys.train(0, 2), keys.test())
        return [stage.key for stage in stages]

    moved = shutil.copytree(tiny_resnet, tmp_path / "elsewhere" / "tiny_resnet")
    assert keys_with(moved) == keys_with(tiny_resnet)
    (moved / "preprocessor_config.json").write_text("{}")
    assert not set(keys_with(moved)) & set(keys_with(tiny_resnet))


def test_patches_of_a_vision_transformer_make_a_grid(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=4,
    )
    network = transformers.ViTModel(config).eval()
    network.save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 16, "width": 16}})
    )
    backbone = Backbone(str(tmp_path / "vit"))
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    features = backbone.embed(images)
    assert features.shape == (2, embedding_channels(str(tmp_path / "vit")), 4, 4)
    with torch.no_grad():
        tokens = network(pixel_values=backbone.preprocessing(images)).last_hidden_state
    assert torch.allclose(features[1, :, 2, 3], tokens[1, 1 + 2 * 4 + 3], atol=1e-5)


@pytest.mark.parametrize(
    ("content", "size"),
    [
        ({"size": 32}, (32, 32)),
        ({"size": {"shortest_edge": 48}}, (48, 48)),
        ({"size": {"height": 20, "width": 10}}, (20, 10)),
        ({}, (224, 224)),
    ],
)
def test_images_are_resized_as_the_backbone_says(content, size):
    assert Preprocessing.read(content).size == size


def test_a_backbone_that_can_not_be_had_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"hf download owner/nothing --local-dir FOLDER"):
        Backbone("owner/nothing@main")
    with pytest.raises(DataError, match="cannot be read"):
        embedding_channels(str(tmp_path))


def test_weights_are_never_unpickled(tiny_resnet, tmp_path):
    network = pytest.importorskip("transformers").ResNetModel.from_pretrained(tiny_resnet)
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((tiny_resnet / "config.json").read_bytes())
    with pytest.raises(DataError, match="must be safetensors"):
        Backbone(str(tmp_path))
