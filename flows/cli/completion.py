"""Shell completion of experiment files and runs. Imports no heavy packages."""

from __future__ import annotations

import os
from pathlib import Path


def experiment_files(incomplete: str) -> list[str]:
    """Return the YAML files and folders with a prefix (default: in ``experiments/``)."""
    folder, slash, start = (incomplete or "experiments/").rpartition("/")
    parent = Path(f"{folder}{slash}" or ".")
    names = _names(parent, start)
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    folders = [f"{name}/" for name in names if (parent / name).is_dir()]
    return [f"{folder}{slash}{name}" for name in [*files, *folders]]


def run_ids(incomplete: str) -> list[str]:
    """Return the runs in the folder ``runs`` with a prefix."""
    return [
        name
        for name in _names(Path("runs"), incomplete)
        if (Path("runs") / name / "manifest.json").exists()
    ]


def runs_and_sweeps(incomplete: str) -> list[str]:
    """Return the runs and sweeps in the folder ``runs`` with a prefix."""
    return [name for name in _names(Path("runs"), incomplete) if (Path("runs") / name).is_dir()]


def _names(folder: Path, start: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(start))
    except OSError:
        return []
