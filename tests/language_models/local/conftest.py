"""A small model, run by both kinds of code."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_model import write_small_model

from ratchet.language_models.local.loading import load_language_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("small") / "m")


@pytest.fixture
def plain(folder):
    return load_language_model(folder, base_dir=Path())


@pytest.fixture(scope="session")
def transformers_model(folder):
    """The same weights, run by transformers."""
    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

    return HuggingFaceLanguageModel.read(folder, torch.device("cpu"), "float32")
