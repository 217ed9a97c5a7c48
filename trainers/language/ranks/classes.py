"""Trainers' classes as other processes find them: by module, or by the file of a plug-in."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.plugins import load_class, plugin_label


def class_reference(found: type) -> str:
    """Return what :func:`find_class` finds a class by in another process.

    Raises
    ------
    ParameterError
        If it was made inside a function, or not in a file.
    """
    module = sys.modules.get(found.__module__)
    file = getattr(module, "__file__", None)
    if "." in found.__qualname__ or file is None:
        raise ParameterError(
            f"trainer: {found.__module__}.{found.__qualname__} can't be found by other processes,"
            " which language.train_service.world_size asks for; expected a class at the top of a"
            " file. Move it there, or leave world_size out."
        )
    if found.__module__ == "__main__" or plugin_label(found.__module__):
        return f"{Path(file).resolve()}:{found.__qualname__}"
    return f"{found.__module__}:{found.__qualname__}"


def find_class(reference: str) -> type:
    """Find a class by what :func:`class_reference` returned."""
    place, _, name = reference.rpartition(":")
    if place.endswith(".py"):
        return load_class(reference)
    found = getattr(importlib.import_module(place), name)
    assert isinstance(found, type)
    return found
