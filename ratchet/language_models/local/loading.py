"""From a name or a folder to a model that can be trained."""

from __future__ import annotations

from pathlib import Path

import torch

from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.plain_model import PlainLanguageModel
from ratchet.language_models.service.engine.llama_shape import plain_shape


def load_language_model(
    name_or_folder: str,
    *,
    base_dir: Path,
    device: str = "cpu",
) -> LanguageModel:
    folder = base_dir / name_or_folder
    shape = plain_shape(folder)
    assert shape is not None
    return PlainLanguageModel.read(folder, shape, torch.device(device))
