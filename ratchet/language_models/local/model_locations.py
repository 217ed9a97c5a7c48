"""Locations and digests of models to train; does not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ratchet.errors import DataError
from ratchet.language_models.local.adapters import weights_print


def find_model(name_or_folder: str | Path, base_dir: Path) -> Path:
    """Return a model's folder: relative to ``base_dir``, or in Hugging Face's cache."""
    folder = base_dir / name_or_folder
    if folder.is_dir():
        return folder.resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name_or_folder), local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise DataError(
            f"model: got {str(name_or_folder)!r}, but no folder {folder} exists, and no model of"
            " this name in Hugging Face's cache. Write the folder's path, or download the model"
            f" first: `hf download {name_or_folder}`."
        ) from error


def model_digest(name_or_folder: str | Path, base_dir: Path) -> str:
    """Return a digest of a model's files; an adapter's include its base model's digest.

    Raises DataError as :func:`find_model`.
    """
    folder = find_model(name_or_folder, base_dir)
    digest = hashlib.sha256(weights_print(folder).encode())
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix != ".safetensors":
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.name}\0{content}\0".encode())
    return digest.hexdigest()
