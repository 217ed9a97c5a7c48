"""References to trainer classes for other processes: by module, or by a plug-in's file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ratchet.errors import ParameterError
from ratchet.plugins import load_class, plugin_label


def class_reference(trainer: type) -> str:
    """Return the reference by which :func:`find_class` finds a class in another process."""
    module = sys.modules.get(trainer.__module__)
    file = getattr(module, "__file__", None)
    if "." in trainer.__qualname__ or file is None:
        raise ParameterError(
            f"trainer: {trainer.__module__}.{trainer.__qualname__} can't be found by other"
            " processes, as language.train_service.world_size requires; expected a class at"
            " the top of a file. Move it there, or leave world_size out."
        )
    if trainer.__module__ == "__main__" or plugin_label(trainer.__module__):
        return f"{Path(file).resolve()}:{trainer.__qualname__}"
    return f"{trainer.__module__}:{trainer.__qualname__}"


def find_class(reference: str) -> type:
    """Find the class of a :func:`class_reference`."""
    module_or_file, _, name = reference.rpartition(":")
    if module_or_file.endswith(".py"):
        return load_class(reference)
    trainer_cls = getattr(importlib.import_module(module_or_file), name)
    assert isinstance(trainer_cls, type)
    return trainer_cls
