"""Classes from a user's file: protocols, trainers, scenarios and whatever else is given by path.

Below the registry. A file is imported under a name made of its path, so that
it is the same module however it is reached; its content is not part of the name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TypeVar, overload

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.shadowing import explain_failed_import

MODULE_PREFIX = "ratchet_plugin_"
_START: ContextVar[Path | str | None] = ContextVar("paths_from", default=None)

_Class = TypeVar("_Class")


def is_class_spec(text: str) -> bool:
    """Return whether a text is ``path/to/file.py:ClassName`` rather than a registered name."""
    path, separator, _ = text.rpartition(":")
    return bool(separator) and path.endswith(".py")


@contextmanager
def paths_from(base_dir: Path | str | None) -> Iterator[None]:
    """Have relative paths of plug-ins start from a folder, where nobody says another."""
    token = _START.set(base_dir)
    try:
        yield
    finally:
        _START.reset(token)


def class_name(reference: str) -> str:
    """Return the class of ``path/to/file.py:ClassName``, and a registered name as it is."""
    return reference.rpartition(":")[2] if is_class_spec(reference) else reference


@overload
def load_class(spec: str, base_dir: Path | str | None = ..., *, base: None = ...) -> type: ...
@overload
def load_class(
    spec: str, base_dir: Path | str | None = ..., *, base: type[_Class]
) -> type[_Class]: ...
def load_class(spec: str, base_dir: Path | str | None = None, *, base: type | None = None) -> type:
    """Load a class by ``path/to/file.py:ClassName``; a subclass of ``base`` if that is given.

    Relative paths start from ``base_dir``; if not given, from the folder of :func:`paths_from`
    or else the working folder.

    Raises
    ------
    ParameterError
        If the text has another form, the file is missing or can't be imported, or the name in
        it is no class or no subclass of ``base``.
    UnknownNameError
        If the file has no such name; with the nearest class.
    """
    if not is_class_spec(spec):
        raise ParameterError(f"got {spec!r}, expected 'path/to/file.py:ClassName'.")
    path, _, class_name = spec.rpartition(":")
    module = load_module(path, base_dir)
    found = getattr(module, class_name, None)
    if found is None:
        own = [n for n, v in vars(module).items() if isinstance(v, type) and _is_own(v, module)]
        raise UnknownNameError(f"{spec}: no class {class_name!r}.{nearest(class_name, own)}")
    if not isinstance(found, type):
        raise ParameterError(f"{spec}: {class_name!r} is {found!r}, expected a class.")
    if base is not None and not issubclass(found, base):
        raise ParameterError(
            f"{spec}: {class_name!r} has the bases {[b.__name__ for b in found.__bases__]},"
            f" expected a subclass of {base.__module__}.{base.__qualname__}."
        )
    return found


def load_module(path: Path | str, base_dir: Path | str | None = None) -> ModuleType:
    """Import a Python file by its path, which starts from ``base_dir`` or the working folder.

    The file is run once in a process, and again when its content has changed since.

    Raises
    ------
    ParameterError
        If there is no such file, it isn't Python, or an import in it fails. Whatever else the
        file raises travels, with a note that says which plug-in was loaded.
    """
    file = file_at(path, base_dir)
    if not file.is_file():
        raise ParameterError(
            f"plug-in {str(path)!r}: there is no file {file}. Relative paths start from"
            f" {file_at('.', base_dir)}."
        )
    source = file.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    name = module_name(file)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__plugin_digest__", None) == digest:
        return known
    return _run(file, name, source)


def file_at(path: Path | str, base_dir: Path | str | None = None) -> Path:
    """Return the absolute path of a file, which starts where those of plug-ins do."""
    start = base_dir or _START.get() or "."
    return (Path(start) / Path(path).expanduser()).resolve()


def module_name(file: Path) -> str:
    """Return the module name of a plug-in's file: its stem and a hash of its absolute path."""
    file = file.resolve()
    stem = "".join(c if c.isalnum() else "_" for c in file.stem)
    return f"{MODULE_PREFIX}{stem}_{hashlib.sha256(file.as_posix().encode()).hexdigest()[:8]}"


def plugin_label(name: str) -> str | None:
    """Return the stem in a plug-in's module name, which has no path in it; None for others."""
    return name.removeprefix(MODULE_PREFIX)[:-9] if name.startswith(MODULE_PREFIX) else None


def _run(file: Path, name: str, source: bytes) -> ModuleType:
    """Run the source that was read, not cached bytecode, which knows changes by the second."""
    module_spec = importlib.util.spec_from_file_location(name, file)
    if module_spec is None:
        raise ParameterError(f"plug-in {file}: Python can't import it, expected a .py file.")
    module = importlib.util.module_from_spec(module_spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, ImportError | SyntaxError):
            clash = explain_failed_import(error, file.parent)
            raise ParameterError(
                f"plug-in {file}: importing it failed with {type(error).__name__}: {error}."
                f" {clash or 'Correct the file, or install what it imports.'}"
            ) from error
        error.add_note(f"while loading the plug-in {file}")
        raise
    module.__dict__["__plugin_digest__"] = hashlib.sha256(source).hexdigest()
    return module


def _is_own(value: type, module: ModuleType) -> bool:
    return value.__module__ == module.__name__
