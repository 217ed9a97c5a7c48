"""Models uploaded by clients for training."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ratchet.errors import DataError
from ratchet.language_models.engines.tokenizer import ChatTokenizer
from ratchet.language_models.service.api.errors import ApiError
from ratchet.language_models.service.models import ModelRegistry
from ratchet.language_models.training_service.models import check_model_files, uploaded_model_id

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READABLE = frozenset({".json", ".jinja"})


def add_model(models: ModelRegistry, name: str, files: Mapping[str, bytes]) -> str:
    """Store a model; return its id, derived from its name and files.

    Raises
    ------
    ApiError
        400 if it isn't a complete model with a tokenizer.
    """
    if not _NAME.fullmatch(name):
        message = f"name: got {name!r}, expected 1 to 64 letters, digits, '.', '_' or '-'."
        raise ApiError(400, message, code="invalid_value", param="name")
    model_id = uploaded_model_id(name, files)
    aside = Path(tempfile.mkdtemp(prefix="upload-", dir=models.folder))
    try:
        check_model_files(files)
        for file, content in files.items():
            if Path(file).suffix == ".json":
                json.loads(content)
            (aside / file).write_bytes(content)
        _check_weights(aside)
        ChatTokenizer(aside)
        models.add(model_id, aside)
    except ValueError as error:  # of JSON, or a DataError
        raise ApiError(400, str(error), code="invalid_value", param="files") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return model_id


def tokenizer_files(models: ModelRegistry, model_id: str) -> dict[str, str]:
    """Return the files of a model's tokenizer by name."""
    from ratchet.language_models.engines.model_folder import configuration_files

    folder = models.get(model_id).complete_folder
    found = [file for file in configuration_files(folder) if file.suffix in _READABLE]
    return {file.name: file.read_text("utf-8") for file in found}


def _check_weights(folder: Path) -> None:
    """Refuse truncated files and files that are not safetensors, by their headers."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np"):
                pass
        except SafetensorError as error:
            raise DataError(
                f"{file.name}: cannot be read as safetensors ({error}), expected a whole file."
                " Save the model again."
            ) from error
