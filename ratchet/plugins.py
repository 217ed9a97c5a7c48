"""Classes from a user's file: protocols, trainers, scenarios and whatever else is given by path.

Below the registry. A file is imported under a name made of its path, so that
it is the same module however it is reached; its content is not part of the name. Files of a
folder import one another by dots, as plug-ins each.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TypeVar, overload

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.shadowing import explain_failed_import

MODULE_PREFIX = "ratchet_plugin_"
FOLDER_PREFIX = "ratchet_folder_"
_PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")
_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, "<")
"""Where files begin that are no user's: the standard library, packages, and what has no file."""
_DIGEST = "__plugin_digest__"
_BY_DOTS = re.compile(rb"\bfrom[\s\\]*\.")
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

    The file is run once in a process, and again when its content has changed since, or that of a
    file beside it which it imports by dots (``from .mine import x``).

    Raises
    ------
    ParameterError
        If there is no such file, it isn't Python, or an import in it fails. Whatever else the
        file raises travels, with a note that says which plug-in was loaded.
    """
    file = file_at(path, base_dir)
    if not os.path.isfile(file):
        raise ParameterError(
            f"plug-in {str(path)!r}: there is no file {file}. Relative paths start from"
            f" {file_at('.', base_dir)}."
        )
    source = file.read_bytes()
    digest = _digest(file, source)
    name = module_name(file)
    known = sys.modules.get(name)
    if known is not None and getattr(known, _DIGEST, None) == digest:
        return known
    return _run(file, name, source, digest)


def file_at(path: Path | str, base_dir: Path | str | None = None) -> Path:
    """Return the absolute path of a file, which starts where those of plug-ins do."""
    start = base_dir or _START.get() or "."
    return (Path(start) / Path(path).expanduser()).resolve()


def module_name(file: Path) -> str:
    """Return the module name of a plug-in's file: its stem and a hash of its absolute path."""
    file = file.resolve()
    stem = "".join(c if c.isalnum() else "_" for c in file.stem)
    return f"{MODULE_PREFIX}{stem}_{_place(file)}"


def folder_package(folder: Path) -> str:
    """Return the package in which the plug-ins of a folder find one another by dots."""
    return FOLDER_PREFIX + _place(folder)


def plugin_label(name: str) -> str | None:
    """Return the stem in a plug-in's module name, which has no path in it; None for others."""
    return name.removeprefix(MODULE_PREFIX)[:-9] if name.startswith(MODULE_PREFIX) else None


def readable_name(item: object) -> str:
    """Return ``file.py:Name`` of a class or function of a plug-in's; of others the name alone."""
    name = getattr(item, "__name__", None)
    if name is None:
        return readable_name(type(item))
    label = plugin_label(getattr(item, "__module__", None) or "")
    return str(name) if label is None else f"{label}.py:{name}"


def custom_code_location(error: BaseException) -> str | None:
    """Return file, line and function of the user's code that raised an error, or led to it.

    The innermost one, of the first cause; None if no such code is in the traceback.
    """
    found = None
    for each in causes(error):
        for frame, line in traceback.walk_tb(each.__traceback__):
            code = frame.f_code
            is_framework = frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES
            if not (is_framework or code.co_filename.startswith(_LIBRARIES)):
                found = f"{code.co_filename}:{line} in {code.co_qualname}"
    return found


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the one that it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _run(file: Path, name: str, source: bytes, digest: str) -> ModuleType:
    """Run the source that was read, not cached bytecode, which knows changes by the second."""
    if file.suffix != ".py":
        raise ParameterError(f"plug-in {file}: Python can't import it, expected a .py file.")
    spec = _PlugInSpec(name, SourceFileLoader(name, str(file)), origin=str(file))
    spec.has_location = True
    module = module_from_spec(spec)
    package = _open_folder(file.parent)
    names = (name, f"{package.__name__}.{file.stem}")
    before = {each: sys.modules[each] for each in names if each in sys.modules}
    sys.modules.update(dict.fromkeys(names, module))
    setattr(module, _DIGEST, digest)  # before it runs: those beside it may import it in turn
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        for each in names:
            sys.modules.pop(each, None)
        sys.modules.update(before)
        if isinstance(error, ImportError | SyntaxError):
            why = explain_failed_import(error, file.parent) or _explain_dots(error, file)
            raise ParameterError(
                f"plug-in {file}: importing it failed with {type(error).__name__}: {error}."
                f" {why or 'Correct the file, or install what it imports.'}"
            ) from error
        error.add_note(f"while loading the plug-in {file}")
        raise
    setattr(package, file.stem, module)
    return module


class _PlugInSpec(ModuleSpec):
    """Of a file that imports by dots from its folder, whatever its own name is."""

    @property
    def parent(self) -> str:
        """The package of its folder."""
        return folder_package(Path(self.origin or "").parent)


class _Neighbours(MetaPathFinder, Loader):
    """Finds what plug-ins import by dots: a file beside them is a plug-in itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find ``FOLDER.stem``; what lies in folders beside the plug-in is Python's to find."""
        package, _, stem = fullname.partition(".")
        if not package.startswith(FOLDER_PREFIX) or "." in stem or not path:
            return None
        file = Path(path[0], f"{stem}.py")
        if not file.is_file() or (file.with_suffix("") / "__init__.py").is_file():
            return None
        return ModuleSpec(fullname, self, origin=str(file))

    def create_module(self, spec: ModuleSpec) -> None:
        """Have Python make a module, whose place the plug-in takes."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the plug-in in the module's place, which is how modules replace themselves."""
        assert module.__spec__ is not None
        sys.modules[module.__name__] = load_module(module.__spec__.origin or "")


def _open_folder(folder: Path) -> ModuleType:
    """Return a folder's package, in which no plug-in is known: each is looked up again."""
    if not any(isinstance(finder, _Neighbours) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Neighbours())
    name = folder_package(folder)
    package = sys.modules.get(name)
    if package is None:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        package = sys.modules[name] = module_from_spec(spec)
    for stem, module in list(vars(package).items()):
        if hasattr(module, _DIGEST):
            delattr(package, stem)
            sys.modules.pop(f"{name}.{stem}", None)
    return package


def _digest(file: Path, source: bytes) -> str:
    """Return a digest of a file and of all those beside it that it stands on by dots."""
    found, pending = {file: source}, [file]
    while pending:
        for stem in _imported_by_dots(found[pending.pop()]):
            beside = file.with_name(f"{stem}.py")
            if beside not in found and beside.is_file():
                found[beside] = beside.read_bytes()
                pending.append(beside)
    parts = [hashlib.sha256(found[path]).digest() for path in sorted(found)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@functools.lru_cache(maxsize=256)
def _imported_by_dots(source: bytes) -> tuple[str, ...]:
    """Return the names that a source imports from its own folder."""
    if not _BY_DOTS.search(source):
        return ()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()  # which is said when it is run
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            module = (node.module or "").partition(".")[0]
            names += [module] if module else [alias.name for alias in node.names]
    return tuple(names)


def _explain_dots(error: Exception, file: Path) -> str | None:
    """Return why an import by dots failed, if that is what failed."""
    if "relative import" in str(error):
        return f"By dots a plug-in imports what lies in its own folder, {file.parent}."
    missing = getattr(error, "name", None) or ""
    package, _, rest = missing.partition(".")
    if package != folder_package(file.parent) or not isinstance(error, ModuleNotFoundError):
        return None
    return f"There is no {rest.replace('.', '/')}.py beside it, in {file.parent}."


def _place(path: Path) -> str:
    return hashlib.sha256(path.as_posix().encode()).hexdigest()[:8]


def _is_own(value: type, module: ModuleType) -> bool:
    return value.__module__ == module.__name__
