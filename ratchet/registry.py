"""Registry of named classes: trainers, protocols, scenarios and all other kinds.

A class is found by its registered name, by its file, or among the entry points of installed
packages. Each package's ``__init__`` lists its built-in classes, so that listing them imports none,
and adding one does not change the code fingerprints of the others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from inspect import cleandoc
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from ratchet.errors import ParameterError, UnknownNameError, nearest, shown
from ratchet.plugins import is_class_spec, load_class, module_name, plugin_label
from ratchet.syntax import parse_python

_T = TypeVar("_T")
_Class = TypeVar("_Class", bound=type)


class FileReference(Protocol):
    """A class in a user's file, as ``{module_path: …, class_name: …}``."""

    @property
    def module_path(self) -> str:
        """The file."""
        ...

    @property
    def class_name(self) -> str:
        """The class in it."""
        ...


@dataclass(frozen=True)
class Entry:
    """A name, the origin of its class (``built-in``, a file, or a package), and its description.

    The description is the first line of the class's docstring; empty for classes of packages that
    are not imported.
    """

    name: str
    origin: str
    description: str


class Registry(Generic[_T]):
    """Classes of one kind.

    Parameters
    ----------
    kind
        The kind in singular, e.g. "trainer". Installed packages register theirs as entry points in
        the group ``ratchet.trainers``, each with its name and ``module:Class``.
    base
        The base class, ``module:Class``, imported on first use; any class when not given.
    home
        The package whose ``BUILT_IN`` maps the name of each built-in class to the module that
        registers it. Importing the package should be cheap.
    parameter
        The parameter that takes these names, for messages; ``kind`` when not given.
    """

    def __init__(
        self, kind: str, base: str = "builtins:object", home: str = "", *, parameter: str = ""
    ) -> None:
        self.kind = kind
        self.group = f"ratchet.{kind}s"
        self.parameter = parameter or kind
        self._base = base
        self._home = home
        self._classes: dict[str, type[_T]] = {}

    @cached_property
    def base(self) -> type[_T]:
        """The base class of all classes."""
        module, _, name = self._base.partition(":")
        return cast("type[_T]", getattr(import_module(module), name))

    @cached_property
    def built_in(self) -> Mapping[str, str]:
        """Name → the module that registers it, for built-in classes."""
        if not self._home:
            return {}
        return cast("Mapping[str, str]", import_module(self._home).BUILT_IN)

    def register(self, name: str) -> Callable[[_Class], _Class]:
        """Return a decorator that registers a class under a name.

        The same class may be registered again: its file was both run as a script and imported, or
        copied.
        """

        def decorate(cls: _Class) -> _Class:
            home, registered = self.built_in.get(name), self._classes.get(name)
            owner = None
            if home is not None and cls.__module__ != home:
                owner = home
            elif registered is not None and not _is_same(registered, cls):
                owner = _full_name(registered)
            if owner is not None:
                raise ParameterError(
                    f"{self.kind} {shown(name)} is taken by {owner}; got {_full_name(cls)}."
                    " Choose another name."
                )
            self._classes[name] = cls
            return cls

        return decorate

    def names(self) -> list[str]:
        """Return all names: built-in, registered and installed. Imports none of the classes."""
        installed = {point.name for point in self._installed}
        return sorted({*self.built_in, *self._classes, *installed})

    def entries(self) -> list[Entry]:
        """Return all names with origins and descriptions. Imports none of the classes."""
        return [Entry(name, self._origin(name), self._about(name)) for name in self.names()]

    def names_of(self, cls: type) -> tuple[str, ...]:
        """Return the names of a class and of the classes it is derived from."""
        return tuple(name for name, base in self._classes.items() if issubclass(cls, base))

    def check(self, name: str) -> None:
        """Check that a name is registered or a file, without imports."""
        if not is_file(name) and name not in self.names():
            raise UnknownNameError(
                f"{self.parameter}: unknown {shown(name)}.{nearest(name, self.names())}"
                f" Give a custom {self.kind} as 'path/to/file.py:ClassName'."
            )

    def find(self, reference: str | FileReference, base_dir: Path | str | None = None) -> type[_T]:
        """Return a class; import no other.

        ``reference`` is a name, ``path/to/file.py:ClassName``, or has a module path and class name.
        Relative paths start from ``base_dir``, by default the working folder.
        """
        name = (
            reference
            if isinstance(reference, str)
            else f"{reference.module_path}:{reference.class_name}"
        )
        if is_file(name):
            return load_class(name, base_dir, base=self.base)
        self.check(name)
        if name in self.built_in:
            import_module(self.built_in[name])
        for point in self._installed.select(name=name):
            self.register(name)(self._checked(point))
        return self._classes[name]

    @property
    def _installed(self) -> EntryPoints:
        return installed_in(self.group)

    def _checked(self, point: EntryPoint) -> type[_T]:
        cls = point.load()
        if isinstance(cls, type) and issubclass(cls, self.base):
            return cls
        raise ParameterError(
            f"{self.parameter}: the entry point {shown(point.name)} of {_package(point)} is"
            f" {shown(cls)}, expected a subclass of {_full_name(self.base)}."
        )

    def _about(self, name: str) -> str:
        """Return the first line of a class's docstring, read from the file of a built-in one."""
        if name in self._classes:
            docstring = self._classes[name].__doc__
        elif name in self.built_in:
            docstring = _docstring_of(self.built_in[name], name)
        else:
            return ""
        return cleandoc(docstring or "").partition("\n")[0].replace("``", "`")

    def _origin(self, name: str) -> str:
        if name in self.built_in:
            return "built-in"
        points = self._installed.select(name=name)
        if points:
            return ", ".join(sorted({_package(point) for point in points}))
        return _file(self._classes[name])


@cache
def installed_in(group: str) -> EntryPoints:
    """Return installed packages' entry points in a group; cached, as reading them is slow."""
    return entry_points(group=group)


def is_file(name: str) -> bool:
    """Return whether a name is a file, with or without a class; without one is an error later."""
    return is_class_spec(name) or name.endswith(".py")


def _docstring_of(module: str, name: str) -> str | None:
    """Return the docstring of the class or function that a module registers under a name."""
    top, *parts = module.split(".")
    path = Path(str(import_module(top).__file__)).parent.joinpath(*parts)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in parse_python(file.read_bytes()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and name in _registered_names(node):
            return ast.get_docstring(node)
    return None


def _registered_names(node: ast.ClassDef | ast.FunctionDef) -> list[object]:
    """Return the first arguments of a definition's decorators."""
    return [
        call.args[0].value
        for call in node.decorator_list
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
    ]


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else point.value


def _is_same(one: type, other: type) -> bool:
    """Return whether a class was loaded twice: by path and as a script, or from a copied file."""
    if one.__qualname__ != other.__qualname__:
        return False
    if _file(one) == _file(other):
        return True
    pairs = ((one, other), (other, one))
    if any(module_name(Path(_file(a))) == b.__module__ for a, b in pairs):
        return True  # the plug-in's module was unloaded
    label = plugin_label(one.__module__)
    return label is not None and label == plugin_label(other.__module__)


def _file(cls: type) -> str:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return str(Path(file).resolve()) if file else cls.__module__


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
