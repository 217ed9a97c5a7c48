"""Package attributes that are imported on first use, so that importing a package costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ratchet.shadowing import refuse_hidden_packages


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's ``__getattr__``, of public names and the modules they live in."""

    def find(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        refuse_hidden_packages()
        return getattr(import_module(homes[name]), name)

    return find
