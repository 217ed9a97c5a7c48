"""Find an environment by its package's name or its file, and call what it has."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ratchet.errors import ParameterError
from ratchet.plugins import file_at, load_module
from ratchet.shadowing import explain_failed_import

PREFIX = "verifiers:"
_ENTRANCE = "load_environment"


def find_loader(dataset: str, base_dir: Path | None) -> Callable[..., Any]:
    """Return the function that makes the environment of ``verifiers:NAME``.

    The name is a package's (``owner/some-game`` and ``some-game`` are ``some_game``), that of a
    Python file, or of a folder with the package's file, whose paths start from ``base_dir``.

    Raises
    ------
    ParameterError
        If there is none, or it has no ``load_environment``.
    """
    name = dataset.removeprefix(PREFIX)
    module = _find_module(name, base_dir)
    found = getattr(module, _ENTRANCE, None)
    if not callable(found):
        raise ParameterError(
            f"dataset: {dataset!r} has no function {_ENTRANCE}, expected a package or file for"
            " verifiers 0.1 or 0.2; the interface of later versions is not read."
        )
    return found  # type: ignore[no-any-return]


def _find_module(name: str, base_dir: Path | None) -> ModuleType:
    path = file_at(name, base_dir)
    if name.endswith(".py"):
        return load_module(path)
    own = path / f"{path.name.replace('-', '_')}.py"
    if own.is_file():
        return load_module(own)
    package = name.rpartition("/")[2].replace("-", "_")
    try:
        return importlib.import_module(package)
    except ImportError as error:
        clash = explain_failed_import(error, Path.cwd())
        raise ParameterError(
            f"dataset: got {PREFIX}{name}, but importing {package!r} failed: {error}."
            f" {clash or f'Install the package, or give a file: {PREFIX}path/to/file.py.'}"
        ) from error


def settled(value: Any) -> Any:  # noqa: ANN401 -- whatever the function returns
    """Return a value, awaited where it is to be."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:  # noqa: ANN401
        return await value

    return asyncio.run(wait())


def call_named(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Call a function with those of the given arguments that it takes, and wait for it."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    taken = {name: value for name, value in given.items() if takes_all or name in parameters}
    return settled(function(**taken))
