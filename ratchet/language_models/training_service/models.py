"""Models of a training service: uploads and tokenizer downloads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import aiohttp
from pydantic import TypeAdapter

from ratchet.errors import DataError
from ratchet.language_models.connection import StatusError
from ratchet.language_models.training_service.client import SyncClient

_TEXT = TypeAdapter(str)
_FILES = TypeAdapter(dict[str, str])
_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt", ".safetensors"})
_NOT_FOUND = 404


def upload_model(client: SyncClient, folder: Path, *, name: str) -> str:
    """Upload a model to a service unless it exists there; return its id.

    The id is computed from the name and the files, so that equal files are the same model.

    Parameters
    ----------
    folder
        A complete model in Hugging Face's layout.
    """
    files = {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix in _SUFFIXES
    }
    check_model_files(files)
    model = uploaded_model_id(name, files)

    def make_form() -> aiohttp.FormData:
        form = aiohttp.FormData({"name": name})
        for file, content in files.items():
            form.add_field("files", content, filename=file)
        return form

    try:
        return str(client.request("GET", f"models/{quote(model)}", id=_TEXT)["id"])
    except StatusError as error:
        if error.status != _NOT_FOUND:
            raise
    return str(client.request("POST", "training/models", None, make_form, id=_TEXT)["id"])


def download_tokenizer(client: SyncClient, model: str, folder: Path) -> None:
    """Download a model's tokenizer and its configuration into an existing folder."""
    path = f"training/tokenizer?model={quote(model, safe='')}"
    files: dict[str, str] = client.request("GET", path, files=_FILES)["files"]
    for name, text in files.items():
        (folder / Path(name).name).write_text(text, encoding="utf-8")


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
