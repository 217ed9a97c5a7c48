"""Lazy imports: package attributes on first use, and optional packages."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ratchet.errors import MissingPackageError
from ratchet.file_reads import continue_noting
from ratchet.shadowing import refuse_hidden_packages
from ratchet.syntax import parse_python

EXTRAS = {
    "transformers": "llm",
    "tokenizers": "llm",
    "httptools": "service",
    "python_multipart": "service",
    "peft": "finetune",
    "datasets": "hub",
    "gymnasium": "rl",
    "pettingzoo": "rl",
    "mpe2": "rl",
    "hydra": "rl",
    "vmas": "rl",
    "dm_control": "rl",
    "pyspiel": "games",
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
"""Optional package → the extra of Ratchet that installs it."""

PRETRAINED_LOCK = threading.RLock()
"""Held while transformers or PEFT are imported or create a model.

While it creates a model, transformers replaces ``tie_weights``, ``torch.linspace`` and the default
dtype of the process; two threads that overlap would keep the replacements. Its modules import each
other in circles; of two threads that import them, one can get a module that is not complete.
"""


def export_lazily(package: str) -> None:
    """Import the public names of a package on first use.

    The names are those that its file re-exports below ``if TYPE_CHECKING:``, each by
    ``from module import Name as Name``. Sets ``__all__``, ``__getattr__`` and ``__dir__``.
    """
    module = sys.modules[package]
    homes = reexports(parse_python(Path(str(module.__file__)).read_text("utf-8")).body)

    def find(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        refuse_hidden_packages()
        return getattr(import_module(homes[name]), name)

    def list_names() -> list[str]:
        return sorted(homes)

    vars(module).update(__all__=sorted(homes), __getattr__=find, __dir__=list_names)


def reexports(statements: Iterable[ast.stmt]) -> dict[str, str]:
    """Return the names re-exported below ``if TYPE_CHECKING:``, with their modules."""
    return {
        alias.name: node.module
        for block in statements
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname == alias.name
    }


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    if sys.modules.get(package) is not None:
        return True
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def require_packages(needed: Iterable[str], by: str) -> None:
    """Check that packages are installed; ``by`` names their user in the message."""
    missing = [package for package in dict.fromkeys(needed) if not is_installed(package)]
    if missing:
        raise MissingPackageError(
            f"{by} needs {', '.join(missing)}, not installed here. Install it:"
            f" {_how_to_install(missing)}"
        )


def explain_missing(error: ImportError) -> MissingPackageError | None:
    """Return an error with the command that installs a missing optional package; None for others.

    None also if the package is installed but lacks a name: then versions don't match.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS or is_installed(package):
        return None
    return MissingPackageError(
        f"{package} is needed, but not installed here. Install it: {_how_to_install([package])}"
    )


def _how_to_install(packages: Iterable[str]) -> str:
    extras = sorted({EXTRAS[package] for package in packages if package in EXTRAS})
    ratchet = [f"'ratchet-experiments[{','.join(extras)}]'"] if extras else []
    others = [package for package in packages if package not in EXTRAS]
    return f"pip install {' '.join([*ratchet, *others])}"


continue_noting()  # each process that uses Ratchet imports this module with the package
