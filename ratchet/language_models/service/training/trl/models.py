"""Models for TRL's trainers: read for training, written whole with an adapter merged into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from ratchet.errors import DataError
from ratchet.language_models.service.engine.model_folder import copy_configuration

ADAPTER_FOLDER = "adapter"


def load_for_training(base: Path, *, all_weights: bool) -> Any:  # noqa: ANN401 -- PreTrainedModel
    """Read a model: in float32 to train all weights, or on a CPU; otherwise as it is stored.

    Raises
    ------
    DataError
        If transformers can't load it.
    """
    keeps_type = torch.cuda.is_available() and not all_weights
    return _load(base, "auto" if keeps_type else torch.float32)


def write_model(trained: Any, base: Path, folder: Path) -> None:  # noqa: ANN401 -- PreTrainedModel
    """Write a trained model as a folder that can be served and trained on.

    Parameters
    ----------
    trained
        The model, or the model with its adapter, which is not changed.
    folder
        Where to write: weights in safetensors, in the type in which the base model's are stored,
        the base model's configuration and tokenizer, and in ``adapter/`` the adapter by itself.
    """
    with torch.random.fork_rng():  # layers that are made are initialised first
        model = _load(base, "auto")
        if isinstance(trained, PeftModel):
            trained.save_pretrained(str(folder / ADAPTER_FOLDER))
            adapted = PeftModel.from_pretrained(model, folder / ADAPTER_FOLDER)
            model = adapted.merge_and_unload()
        else:
            model.load_state_dict(trained.state_dict())
    model.save_pretrained(folder)
    copy_configuration(base, folder)


def _load(folder: Path, dtype: torch.dtype | str) -> Any:  # noqa: ANN401
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"transformers cannot load the model in {folder}: {error}") from error
