"""Files of models that are uploaded to a training service."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ratchet.errors import DataError

_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".safetensors"})


def read_model_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a complete model in Hugging Face's layout."""
    files = {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix in _SUFFIXES
    }
    check_model_files(files)
    return files


def uploaded_model_id(name: str, files: Mapping[str, bytes]) -> str:
    """Return the id of a model with these files at a service."""
    digest = hashlib.sha256(name.encode())
    for file in sorted(files):
        digest.update(f"\0{file}\0{hashlib.sha256(files[file]).hexdigest()}".encode())
    return f"{name}-{digest.hexdigest()[:16]}"


def check_model_files(files: Mapping[str, bytes]) -> None:
    """Check that files are a complete model in Hugging Face's layout."""
    missing = [name for name in ("config.json", "tokenizer.json") if name not in files]
    if not any(name.endswith(".safetensors") for name in files):
        missing.append("model.safetensors")
    if missing or "adapter_config.json" in files:
        raise DataError(
            f"model: got the files {sorted(files)}, expected those of a complete model"
            + (f" with {', '.join(missing)}." if missing else ", not of an adapter.")
        )
    for name in files:
        if Path(name).name != name or Path(name).suffix not in _SUFFIXES or name.startswith("."):
            raise DataError(f"model: unexpected file {name!r}; expected only a model's files.")
