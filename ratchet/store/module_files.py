"""Files and folders of modules: the user's, and those that are installed or part of Python."""

from __future__ import annotations

import functools
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ratchet.plugins import MODULE_PREFIX

_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})


def may_import_from(top: str, folder: Path) -> bool:
    """Return whether ``import top`` could import a file in this folder, in this process."""
    if top in sys.stdlib_module_names:
        return False
    module = sys.modules.get(top)
    if module is None:
        return True
    if (file := source_file(module)) is not None:
        return file in (folder / f"{top}.py", folder / top / "__init__.py")
    return folder / top in package_folders(module)


def uninstalled_location(top: str) -> tuple[Path, ...]:
    """Return the location of a user's package or module that is on the path, not installed."""
    if top in sys.stdlib_module_names or top.startswith(MODULE_PREFIX):
        return ()
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return ()
    origin = None if spec is None else spec.origin
    if origin is None or not origin.endswith(".py") or is_library(_resolved(origin)):
        return ()
    path = _resolved(origin)
    return (path.parent if path.name == "__init__.py" else path.with_suffix(""),)


def source_file(module: ModuleType | None) -> Path | None:
    """Return the source file of an imported module; None without one."""
    file = getattr(module, "__file__", None)
    return _resolved(file) if file and str(file).endswith(".py") else None


def package_folders(module: ModuleType | None) -> tuple[Path, ...]:
    """Return the folders of an imported package; none for other modules."""
    return tuple(_resolved(path) for path in getattr(module, "__path__", ()))


@functools.cache
def _resolved(path: str) -> Path:
    return Path(path).resolve()


@functools.cache
def is_library(path: Path) -> bool:
    """Return whether a file was installed, or is part of Python."""
    if _LIBRARY_FOLDERS & set(path.parts):
        return True
    return path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
