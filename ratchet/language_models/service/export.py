"""Export of a service's model as a complete folder, for tools without adapter support."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from ratchet.errors import LanguageServiceError
from ratchet.language_models.engines.hugging_face_model import with_adapters
from ratchet.language_models.engines.model_folder import copy_configuration
from ratchet.language_models.service.database import Database
from ratchet.language_models.service.models import find_stored_model
from ratchet.language_models.service.settings import ServiceSettings
from ratchet.lazy import PRETRAINED_LOCK
from ratchet.models.folders import WEIGHTS_FILE, read_weights
from ratchet.models.llama_shape import plain_shape
from ratchet.models.low_rank import LowRankChange


def export_model(home: Path, model_id: str, folder: Path) -> None:
    """Write a model of a home's service, with its adapters merged, to a new folder.

    Atomic; the service may be running.
    """
    service = ServiceSettings(home=home)
    if not service.database_file.is_file():
        raise LanguageServiceError(f"{home} has no model service; set its home with --home.")
    if folder.exists():
        raise LanguageServiceError(f"{folder} already exists. Choose a new folder.")
    database = Database(service.database_file)
    try:
        model = find_stored_model(database, service.models_folder, model_id)
    finally:
        database.close()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".exporting-") as work:
        complete_model = Path(work) / "model"
        write_atomically(model.complete_folder, model.adapters, complete_model)
        complete_model.rename(folder)


def write_atomically(whole: Path, adapters: Sequence[Path], folder: Path) -> None:
    """Write a model with its adapters merged to a new folder, atomically."""
    if not adapters:
        shutil.copytree(whole, folder)
        return
    if plain_shape(whole) is not None:
        copy_configuration(whole, folder)
        weights = read_weights(whole / WEIGHTS_FILE)
        for adapter in adapters:
            LowRankChange(adapter).merge_into(weights)
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        return
    with PRETRAINED_LOCK:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(whole, dtype="auto", use_safetensors=True)
    with_adapters(model, adapters).save_pretrained(folder)
    copy_configuration(whole, folder)
