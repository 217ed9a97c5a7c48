"""Read a dataset of the Hugging Face hub, or a local copy of one, with ``datasets``.

The only module that imports that package. Scenarios interpret the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ratchet.errors import DataError


def load_hub_splits(name: str, how_to_use: str, config: str | None = None) -> Mapping[str, Any]:
    """Read all splits of a dataset: split → ``datasets.Dataset``; ``all`` without splits.

    It is ``OWNER/NAME`` on the hub, ``OWNER/NAME@REVISION`` of one revision of it, a folder of data
    files, or a folder that ``save_to_disk`` wrote. ``how_to_use`` is the experiment's text to read
    the folder ``FOLDER``, for messages. ``config`` is one of the dataset's configurations, if it
    has several; a local copy without configurations is used unchanged.
    """
    datasets = _import_datasets(name)
    folder = Path(name).expanduser()
    try:
        if not folder.is_dir():
            repository, _, revision = name.partition("@")
            loaded = datasets.load_dataset(repository, config, revision=revision or None)
        elif (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            loaded = datasets.load_from_disk(str(folder))
        else:
            configs = [] if config is None else datasets.get_dataset_config_names(str(folder))
            loaded = datasets.load_dataset(str(folder), config if config in configs else None)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"dataset {name}: cannot be read: {type(error).__name__}: {error}. Expected a"
            " dataset on the Hugging Face hub (needs the network once, HF_HUB_OFFLINE unset), or a"
            f" local copy: hf download --repo-type dataset {name} --local-dir FOLDER,"
            f" then {how_to_use}."
        ) from error
    if isinstance(loaded, Mapping):
        return {str(split): rows for split, rows in loaded.items()}
    return {"all": loaded}


def hash_files(path: Path) -> dict[str, str]:
    """Return SHA-256 of a file, or of all files of a folder, by name; empty if it is missing."""
    if not path.exists():
        return {}
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    base = path if path.is_dir() else path.parent
    return {
        str(file.relative_to(base)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


def _import_datasets(name: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"dataset {name}: reading it needs the package datasets. Install it with:"
            " pip install 'ratchet-experiments[hub]'"
        ) from error
    return datasets  # type: ignore[no-any-return] # untyped package
