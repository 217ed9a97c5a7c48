"""Classes from users' files: protocols, trainers, scenarios and others given by path.

A file is imported under a module name derived from its absolute path, not from its content. Files
in one folder can import each other with relative imports, each as a plug-in.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TypeVar, overload

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.file_reads import Stamp, noted_reads
from ratchet.shadowing import explain_failed_import
from ratchet.syntax import parse_python

MODULE_PREFIX = "ratchet_plugin_"
FOLDER_PREFIX = "ratchet_folder_"
_PACKAGES = ("ratchet", "trainers", "tasks", "flows", "deployments")
_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, "<")
"""Path prefixes of code that is not a user's: the standard library, packages, code without a
file."""
_DIGEST = "__plugin_digest__"
_BY_DOTS = re.compile(rb"\bfrom[\s\\]*\.")
READ_ON_IMPORT: dict[Path, dict[str, Stamp]] = {}
"""The files that were opened while a plug-in was imported, by the plug-in's path."""
_START: ContextVar[Path | str | None] = ContextVar("paths_from", default=None)

_Class = TypeVar("_Class")


def is_framework(module: str) -> bool:
    """Return whether a module is in one of Ratchet's packages."""
    return module.partition(".")[0] in _PACKAGES


def is_class_spec(text: str) -> bool:
    """Return whether a text is ``path/to/file.py:ClassName`` rather than a registered name."""
    path, separator, _ = text.rpartition(":")
    return bool(separator) and path.endswith(".py")


@contextmanager
def paths_from(base_dir: Path | str | None) -> Iterator[None]:
    """Resolve relative paths of plug-ins from a folder by default."""
    token = _START.set(base_dir)
    try:
        yield
    finally:
        _START.reset(token)


def class_name(reference: str) -> str:
    """Return the class of ``path/to/file.py:ClassName``; a registered name unchanged."""
    return reference.rpartition(":")[2] if is_class_spec(reference) else reference


@overload
def load_class(spec: str, base_dir: Path | str | None = ..., *, base: None = ...) -> type: ...
@overload
def load_class(
    spec: str, base_dir: Path | str | None = ..., *, base: type[_Class]
) -> type[_Class]: ...
def load_class(spec: str, base_dir: Path | str | None = None, *, base: type | None = None) -> type:
    """Load a class by ``path/to/file.py:ClassName``; a subclass of ``base`` if that is given.

    Relative paths start from ``base_dir``; if not given, from the folder of :func:`paths_from` or
    else the working folder.
    """
    if not is_class_spec(spec):
        raise ParameterError(f"got {spec!r}, expected 'path/to/file.py:ClassName'.")
    path, _, class_name = spec.rpartition(":")
    module = load_module(path, base_dir)
    cls = getattr(module, class_name, None)
    if cls is None:
        classes = {n: v for n, v in vars(module).items() if isinstance(v, type)}
        names = [n for n, v in classes.items() if v.__module__ == module.__name__]
        raise UnknownNameError(f"{spec}: no class {class_name!r}.{nearest(class_name, names)}")
    if not isinstance(cls, type):
        raise ParameterError(f"{spec}: {class_name!r} is {cls!r}, expected a class.")
    if base is not None and not issubclass(cls, base):
        raise ParameterError(
            f"{spec}: {class_name!r} has the bases {[b.__name__ for b in cls.__bases__]},"
            f" expected a subclass of {base.__module__}.{base.__qualname__}."
        )
    return cls


def load_callable(spec: str, base_dir: Path | str | None, parameter: str) -> Callable[..., object]:
    """Load the function or class ``path/to/file.py:name`` that a parameter names."""
    path, _, name = spec.rpartition(":")
    module = load_module(path, base_dir)
    named = getattr(module, name, None)
    if named is None:
        callables = [each for each, value in vars(module).items() if callable(value)]
        raise UnknownNameError(f"{parameter}: no {name!r} in {path}.{nearest(name, callables)}")
    if not callable(named):
        raise ParameterError(f"{parameter}: {spec} is {named!r}, expected a function or class.")
    return named  # type: ignore[no-any-return]


def load_module(path: Path | str, base_dir: Path | str | None = None) -> ModuleType:
    """Import a Python file by its path, which starts from ``base_dir`` or the working folder.

    The file is run once in a process, and again after its content has changed, or that of a file in
    its folder that it imports relatively (``from .mine import x``).

    Errors of the file, except failed imports, propagate with a note that names the plug-in.
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
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, _DIGEST, None) == digest:
        return loaded
    return _run(file, name, source, digest)


def file_at(path: Path | str, base_dir: Path | str | None = None) -> Path:
    """Return the absolute path of a file, resolved like those of plug-ins."""
    start = base_dir or _START.get() or "."
    return (Path(start) / Path(path).expanduser()).resolve()


def module_name(file: Path) -> str:
    """Return the module name of a plug-in's file: its stem and a hash of its absolute path."""
    file = file.resolve()
    stem = "".join(c if c.isalnum() else "_" for c in file.stem)
    return f"{MODULE_PREFIX}{stem}_{_path_hash(file)}"


def folder_package(folder: Path) -> str:
    """Return the package for relative imports between the plug-ins of a folder."""
    return FOLDER_PREFIX + _path_hash(folder)


def plugin_label(name: str) -> str | None:
    """Return the file stem in a plug-in's module name; None for other modules."""
    return name.removeprefix(MODULE_PREFIX)[:-9] if name.startswith(MODULE_PREFIX) else None


def readable_name(item: object) -> str:
    """Return ``file.py:Name`` of a plug-in's class or function; only the name of others."""
    name = getattr(item, "__name__", None)
    if name is None:
        return readable_name(type(item))
    label = plugin_label(getattr(item, "__module__", None) or "")
    return str(name) if label is None else f"{label}.py:{name}"


def custom_code_location(error: BaseException) -> str | None:
    """Return file, line and function of the user's code that raised or caused an error.

    The innermost frame of the first cause; None if no user code is in the traceback.
    """
    location = None
    for each in causes(error):
        for frame, line in traceback.walk_tb(each.__traceback__):
            code = frame.f_code
            is_framework = frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES
            if not (is_framework or code.co_filename.startswith(_LIBRARIES)):
                location = f"{code.co_filename}:{line} in {code.co_qualname}"
    return location


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__


def _run(file: Path, name: str, source: bytes, digest: str) -> ModuleType:
    """Run the source as read, not cached bytecode, which misses changes within a second."""
    if file.suffix != ".py":
        raise ParameterError(f"plug-in {file}: Python can't import it, expected a .py file.")
    spec = _PlugInSpec(name, SourceFileLoader(name, str(file)), origin=str(file))
    spec.has_location = True
    module = module_from_spec(spec)
    package = _open_folder(file.parent)
    names = (name, f"{package.__name__}.{file.stem}")
    before = {each: sys.modules[each] for each in names if each in sys.modules}
    sys.modules.update(dict.fromkeys(names, module))
    setattr(module, _DIGEST, digest)  # before it runs: files that it imports may import it
    try:
        with noted_reads() as reads:
            exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
        READ_ON_IMPORT[file] = dict(reads)
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
    """Spec of a file whose relative imports refer to its folder, not to its module name."""

    @property
    def parent(self) -> str:
        """The package of its folder."""
        return folder_package(Path(self.origin or "").parent)


class _Neighbours(MetaPathFinder, Loader):
    """Finder for plug-ins' relative imports: a file in their folder is a plug-in too."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find ``FOLDER.stem``; Python itself finds packages in the folder."""
        package, _, stem = fullname.partition(".")
        if not package.startswith(FOLDER_PREFIX) or "." in stem or not path:
            return None
        file = Path(path[0], f"{stem}.py")
        if not file.is_file() or (file.with_suffix("") / "__init__.py").is_file():
            return None
        return ModuleSpec(fullname, self, origin=str(file))

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which the plug-in replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the module by the plug-in in ``sys.modules``."""
        assert module.__spec__ is not None
        sys.modules[module.__name__] = load_module(module.__spec__.origin or "")


def _open_folder(folder: Path) -> ModuleType:
    """Return a folder's package without its plug-ins, so that each is looked up again."""
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
    """Return a digest of a file and of all files that it imports relatively."""
    sources, pending = {file: source}, [file]
    while pending:
        for stem in _imported_by_dots(sources[pending.pop()]):
            neighbour = file.with_name(f"{stem}.py")
            if neighbour not in sources and neighbour.is_file():
                sources[neighbour] = neighbour.read_bytes()
                pending.append(neighbour)
    parts = [hashlib.sha256(sources[path]).digest() for path in sorted(sources)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@functools.lru_cache(maxsize=256)
def _imported_by_dots(source: bytes) -> tuple[str, ...]:
    """Return the names that a source imports relatively from its folder."""
    if not _BY_DOTS.search(source):
        return ()
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return ()  # reported when it is run
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            module = (node.module or "").partition(".")[0]
            names += [module] if module else [alias.name for alias in node.names]
    return tuple(names)


def _explain_dots(error: Exception, file: Path) -> str | None:
    """Return the reason that a relative import failed; None for other errors."""
    if "relative import" in str(error):
        return f"Relative imports of a plug-in refer to its folder, {file.parent}."
    missing = getattr(error, "name", None) or ""
    package, _, rest = missing.partition(".")
    if package != folder_package(file.parent) or not isinstance(error, ModuleNotFoundError):
        return None
    return f"There is no {rest.replace('.', '/')}.py in {file.parent}."


def _path_hash(path: Path) -> str:
    return hashlib.sha256(path.as_posix().encode()).hexdigest()[:8]
