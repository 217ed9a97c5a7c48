"""Empty SQLite databases of Prefect and MLflow, migrated once per machine and version, then copied.

The migrations of both take several CPU-seconds, in each new folder. Templates are in
``$XDG_CACHE_HOME/ratchet/databases`` (``~/.cache``).
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from ratchet.store.locks import user_cache
from ratchet.tracking.files import locked


def copy_template(
    name: str,
    path: Path,
    migrate: Callable[[Path], None],
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Create a database under a temporary name, and rename it into place; do nothing if it exists.

    One process creates it, others wait.

    Parameters
    ----------
    name
        Name of the library and its version.
    path
        The new database.
    migrate
        Creates an empty database at a path; called if this machine has no template yet.
    complete
        Completes the copy at a path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        if path.exists() and path.stat().st_size:
            return
        temporary_path = path.with_name(f".{path.name}.new")
        for leftover in path.parent.glob(f"{temporary_path.name}*"):  # of a killed process
            leftover.unlink()
        try:
            shutil.copyfile(_template(name, migrate, user_cache() / "databases"), temporary_path)
        except OSError:  # no writable cache
            with tempfile.TemporaryDirectory() as folder:
                shutil.copyfile(_template(name, migrate, Path(folder)), temporary_path)
        if complete is not None:
            complete(temporary_path)
        temporary_path.replace(path)


def _template(name: str, migrate: Callable[[Path], None], folder: Path) -> Path:
    """Return the template in a folder; create it if it is missing."""
    template = folder / f"{name}.db"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{name}.lock"):
        if template.exists():
            return template
        temporary_folder = folder / f".{name}.new"
        shutil.rmtree(temporary_folder, ignore_errors=True)  # of a killed process
        temporary_folder.mkdir()
        migrate(temporary_folder / "migrated.db")
        with contextlib.closing(sqlite3.connect(temporary_folder / "migrated.db")) as migrated:
            # with its journal
            migrated.execute("vacuum into ?", (str(temporary_folder / template.name),))
        (temporary_folder / template.name).replace(template)
        shutil.rmtree(temporary_folder)
    return template
