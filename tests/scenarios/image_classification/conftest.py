"""Small agents for digits, folders of images in the hub's layout, and a tiny backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet import HyperParameters
from ratchet.parameters.hyper_parameters import set_path

AGENT = {"d_latent_pixel_selector": 4, "d_decider": 4, "d_value": 4, "num_blocks_per_group": 1}
PARAMETERS: dict[str, Any] = {
    "scenario": "image_classification",
    "trainer": "vanilla_ppo",
    "dataset": "digits",
    "d_representation": 4,
    "image_classification": {"initial_num_channels": 2},
    "nip_protocol": {"max_message_rounds": 4},
    "rl": {"frames_per_batch": 32, "num_iterations": 2, "num_epochs": 1},
    "agents": {"_default": AGENT},
}
SPLITS = {"train": 40, "test": 20}


@pytest.fixture(scope="session")
def image_parameters() -> Any:
    def make(**changes: Any) -> HyperParameters:
        plain = {path.replace("__", "."): value for path, value in changes.items()}
        data = HyperParameters(**PARAMETERS).to_dict()
        for path, value in plain.items():
            set_path(data, path, value)
        return HyperParameters.from_dict(data)

    return make


def pictures(size: int, shape: tuple[int, int, int], num_classes: int, seed: int) -> Any:
    """Random images whose first pixel is their class, and the classes."""
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    classes = rng.permutation(np.arange(size) * num_classes // size)
    images = rng.integers(0, 256, (size, height, width, channels), dtype=np.uint8)
    images[:, 0, 0] = classes[:, None]
    return images.squeeze(-1) if channels == 1 else images, classes


@pytest.fixture
def image_folder(tmp_path, monkeypatch) -> Any:
    """Write a dataset as the hub has it: parquet files by split, perhaps in a configuration."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(
        shape=(1, 28, 28), num_classes=10, image="image", labels=("label",), config=None
    ) -> Path:
        folder = tmp_path / "a_copy"
        data_folder = folder if config is None else folder / config
        data_folder.mkdir(parents=True)
        for seed, (split, size) in enumerate(SPLITS.items()):
            images, classes = pictures(size, shape, num_classes, seed)
            columns = {image: list(images), **dict.fromkeys(labels, classes.tolist())}
            features = {image: datasets.Image()}
            features |= {name: datasets.ClassLabel(num_classes) for name in labels}
            rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
            rows.to_parquet(data_folder / f"{split}-00000-of-00001.parquet")
        if config is not None:
            files = [{"split": s, "path": f"{config}/{s}-*"} for s in SPLITS]
            head = json.dumps({"configs": [{"config_name": config, "data_files": files}]})
            (folder / "README.md").write_text(f"---\n{head}\n---\n")
        return folder

    return write


@pytest.fixture(scope="session")
def tiny_resnet(tmp_path_factory) -> Path:
    """A small random ResNet in a folder, with its preprocessor configuration."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("backbone") / "tiny_resnet"
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic"
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        transformers.ResNetModel(config).save_pretrained(folder)
    ready = {"size": {"shortest_edge": 16}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(ready))
    return folder
