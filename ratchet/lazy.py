"""Imports that wait: package attributes on first use, and packages that need not be installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ratchet.errors import MissingPackageError
from ratchet.shadowing import refuse_hidden_packages

EXTRAS = {
    "transformers": "llm",
    "tokenizers": "llm",
    "trl": "finetune",
    "peft": "finetune",
    "datasets": "hub",
    "gymnasium": "rl",
    "pettingzoo": "rl",
    "mpe2": "rl",
    "hydra": "rl",
    "vmas": "rl",
    "dm_control": "rl",
    "ray": "ray",
    "prefect_dask": "cluster",
    "prefect_ray": "cluster",
    "tinker": "clients",
    "flask_wtf": "auth",
    "tensorboard": "mirrors",
    "wandb": "mirrors",
    "optuna": "sweeps",
    "opentelemetry.exporter.otlp.proto.http": "telemetry",
}
"""The extra of Ratchet with which an optional package is installed."""


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's ``__getattr__``, of public names and the modules they live in."""

    def find(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        refuse_hidden_packages()
        return getattr(import_module(homes[name]), name)

    return find


def is_installed(package: str) -> bool:
    """Return whether a package could be imported; imports nothing."""
    if package in sys.modules:
        return True
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def require_packages(needed: Iterable[str], by: str) -> None:
    """Check that packages are installed; ``by`` is what needs them, for the message.

    Raises
    ------
    MissingPackageError
        With the command that installs them.
    """
    missing = [package for package in dict.fromkeys(needed) if not is_installed(package)]
    if missing:
        raise MissingPackageError(
            f"{by} needs {', '.join(missing)}, not installed here. Install it:"
            f" {_how_to_install(missing)}"
        )


def explain_missing(error: ImportError) -> MissingPackageError | None:
    """Say of a failed import how to install the package; None if it is none of the optional ones.

    Of a package that is there, and lacks something, the versions don't fit: that is no such case.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS or is_installed(package):
        return None
    return MissingPackageError(
        f"{package} is needed, but not installed here. Install it: {_how_to_install([package])}"
    )


def _how_to_install(packages: Iterable[str]) -> str:
    extras = sorted({EXTRAS[package] for package in packages if package in EXTRAS})
    own = [f"'ratchet-experiments[{','.join(extras)}]'"] if extras else []
    others = [package for package in packages if package not in EXTRAS]
    return f"pip install {' '.join([*own, *others])}"
