"""Files of models that are uploaded to a training service."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ratchet.errors import DataError

_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".safetensors"})


UPLOAD_BYTES = 256 * 2**20
"""Size of the largest upload that Ratchet's service accepts."""


def read_model_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a complete model in Hugging Face's layout, if they can be uploaded."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
    paths = [path for path in paths if path.suffix in _SUFFIXES]
    size = sum(path.stat().st_size for path in paths)
    if size > UPLOAD_BYTES:
        raise DataError(
            f"model: {folder} has {size / 1e6:.0f} MB, and a service accepts uploads of"
            f" {UPLOAD_BYTES / 1e6:.0f} MB. Start it with `ratchet llm serve --model {folder}`, and"
            f" set the agent's model to its name, {folder.name!r}."
        )
    files = {path.name: path.read_bytes() for path in paths}
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
