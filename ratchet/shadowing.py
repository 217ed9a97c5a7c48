"""Detect folders that hide one of Ratchet's packages.

``flows``, ``tasks``, ``trainers`` and ``deployments`` are common names: a user's project with a
package of that name hides Ratchet's if its folder comes first on Python's path.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from ratchet.errors import NameClashError

PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")
ROOT = Path(__file__).resolve().parents[1]
"""The folder of all packages: a clone, or the folder of installed packages."""


@functools.cache
def refuse_hidden_packages() -> None:
    """Raise :class:`NameClashError` if Python finds another package of the same name."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        locations = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
        paths = [Path(location).resolve() for location in locations]
        if paths and paths != [ROOT / package]:
            raise NameClashError(
                f"Ratchet's package `{package}` is hidden by {paths[0]}, which comes first on"
                f" Python's path. Expected {ROOT / package}. Rename that folder, or start Python"
                " from another one (the command `ratchet` does not search the working folder)."
            )


def refuse_working_folder(folder: Path) -> None:
    """Raise :class:`NameClashError` if a process that searches ``folder`` first finds others.

    Prefect puts the working folder first on Python's path when it imports a flow.
    """
    for package in PACKAGES if folder.resolve() != ROOT else ():
        for path in (folder / package / "__init__.py", folder / f"{package}.py"):
            if path.exists():
                raise NameClashError(
                    f"deployed runs start in {folder}, where {path} hides Ratchet's package"
                    f" `{package}` from Prefect. Rename it, or deploy from another folder."
                )


def explain_failed_import(error: Exception, folder: Path) -> str | None:
    """Return the name clash because of which a file in ``folder`` can't import a neighbour."""
    top = (getattr(error, "name", None) or "").partition(".")[0]
    is_neighbour = (folder / top).exists() or (folder / f"{top}.py").exists()
    if top not in PACKAGES or folder == ROOT or not is_neighbour:
        return None
    return (
        f"`{top}` is Ratchet's own package, {ROOT / top}, which hides the one in {folder}."
        " Rename that one."
    )
