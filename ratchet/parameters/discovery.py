"""Find the parameter sections of built-in scenarios and of installed plug-ins.

A scenario is a package in ``ratchet.scenarios`` whose module ``parameters`` registers its
models; an installed plug-in names its module as an entry point in ``ratchet.parameters``.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from functools import cache
from importlib.metadata import entry_points


@cache
def load_plugins() -> None:
    """Import every module that registers parameters. Runs once."""
    for name in ("trainers", "text_trainers", "torchrl", "protocols", "options"):
        importlib.import_module(f"ratchet.parameters.{name}")
    import ratchet.scenarios as scenarios

    for module in pkgutil.iter_modules(scenarios.__path__):
        name = f"ratchet.scenarios.{module.name}.parameters"
        if module.ispkg and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    for entry_point in entry_points(group="ratchet.parameters"):
        entry_point.load()
