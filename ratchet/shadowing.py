"""Whether another folder takes the place of one of Ratchet's packages.

``flows``, ``tasks``, ``trainers`` and ``deployments`` are usual names: a project of the user's that
has one of them as a package hides ours wherever its folder comes first on Python's path.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from ratchet.errors import NameClashError

PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")
ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds them all: a clone, or the place of installed packages."""


@functools.cache
def refuse_hidden_packages() -> None:
    """Raise a :class:`NameClashError` if Python finds another package instead of one of ours."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
        found = [Path(place).resolve() for place in places]
        if found and found != [ROOT / package]:
            raise NameClashError(
                f"Ratchet's package `{package}` is hidden by {found[0]}, which comes first on"
                f" Python's path. Expected {ROOT / package}. Rename that folder, or start Python"
                " from another one (the command `ratchet` does not look into the working folder)."
            )


def refuse_working_folder(folder: Path) -> None:
    """Raise a :class:`NameClashError` if a process that looks into ``folder`` first finds others.

    Prefect puts the working folder first on Python's path when it imports a flow.
    """
    for package in PACKAGES if folder.resolve() != ROOT else ():
        for found in (folder / package / "__init__.py", folder / f"{package}.py"):
            if found.exists():
                raise NameClashError(
                    f"deployed runs start in {folder}, where {found} hides Ratchet's package"
                    f" `{package}` from Prefect. Rename it, or deploy from another folder."
                )


def explain_failed_import(error: Exception, folder: Path) -> str | None:
    """Return why a file in ``folder`` can't import what lies beside it, if a name clash is why."""
    top = (getattr(error, "name", None) or "").partition(".")[0]
    is_beside = (folder / top).exists() or (folder / f"{top}.py").exists()
    if top not in PACKAGES or folder == ROOT or not is_beside:
        return None
    return (
        f"`{top}` is Ratchet's own package, {ROOT / top}; what lies under that name in {folder} is"
        " not seen. Give it another name."
    )
