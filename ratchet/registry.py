"""What there is by name: one registry for trainers, protocols, scenarios and all other kinds.

A class is found by the name it registers, by its file, or among the entry points of installed
packages. The built-in ones are said in the ``__init__`` of the package they live in, so that
listing them imports none, and adding one leaves the code fingerprints of the others alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from ratchet.errors import ParameterError, UnknownNameError, nearest, shown
from ratchet.plugins import is_class_spec, load_class, module_name, plugin_label

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
    """A name, and where its class comes from: ``built-in``, a file, or an installed package."""

    name: str
    origin: str


class Registry(Generic[_T]):
    """Classes of one kind.

    Parameters
    ----------
    kind
        What they are, e.g. "trainer". Installed packages offer theirs as entry points in the
        group ``ratchet.trainers``, each with its name and ``module:Class``.
    base
        What they are subclasses of, ``module:Class``; imported when it is first needed. Of any
        class when not given.
    home
        The package whose ``BUILT_IN`` maps the name of each built-in one to the module that
        registers it. Importing the package should cost nothing.
    parameter
        Where names stand in an experiment file, for messages; ``kind`` when not given.
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
        """What all classes are subclasses of."""
        module, _, name = self._base.partition(":")
        return cast("type[_T]", getattr(import_module(module), name))

    @cached_property
    def built_in(self) -> Mapping[str, str]:
        """Name → the module that registers it, of those that come with the package."""
        if not self._home:
            return {}
        return cast("Mapping[str, str]", import_module(self._home).BUILT_IN)

    def register(self, name: str) -> Callable[[_Class], _Class]:
        """Give a class a name.

        The same class may come again: its file is run as a script and imported, or copied.

        Raises
        ------
        ParameterError
            If another class has taken the name.
        """

        def decorate(found: _Class) -> _Class:
            home, taken = self.built_in.get(name), self._classes.get(name)
            owner = None
            if home is not None and found.__module__ != home:
                owner = home
            elif taken is not None and not _is_same(taken, found):
                owner = _full_name(taken)
            if owner is not None:
                raise ParameterError(
                    f"{self.kind} {shown(name)} is taken by {owner}; got {_full_name(found)}."
                    " Choose another name."
                )
            self._classes[name] = found
            return found

        return decorate

    def names(self) -> list[str]:
        """Return all names: built-in, registered and installed. Imports none of the classes."""
        installed = {point.name for point in self._installed}
        return sorted({*self.built_in, *self._classes, *installed})

    def entries(self) -> list[Entry]:
        """Return all names with where they come from. Imports none of the classes."""
        return [Entry(name, self._origin(name)) for name in self.names()]

    def names_of(self, found: type) -> tuple[str, ...]:
        """Return the names of a class and of the classes it is derived from."""
        return tuple(name for name, known in self._classes.items() if issubclass(found, known))

    def check(self, name: str) -> None:
        """Check that a name is known or says a file; imports nothing.

        Raises
        ------
        UnknownNameError
            With the nearest name.
        """
        if not is_file(name) and name not in self.names():
            article = "An" if self.kind[0] in "aeiou" else "A"
            raise UnknownNameError(
                f"{self.parameter}: unknown {shown(name)}.{nearest(name, self.names())}"
                f" {article} {self.kind} of your own is given as 'path/to/file.py:ClassName'."
            )

    def find(self, reference: str | FileReference, base_dir: Path | str | None = None) -> type[_T]:
        """Find a class, and import no other.

        It is named, ``path/to/file.py:ClassName``, or of a module path and class name. Relative
        paths start from ``base_dir``, the working folder if not given.

        Raises
        ------
        UnknownNameError
            If nothing has the name; with the nearest one.
        ParameterError
            If the file can't be loaded, the class is none of this kind, or an installed
            package offers another class under a name that is taken.
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
        found = point.load()
        if isinstance(found, type) and issubclass(found, self.base):
            return found
        raise ParameterError(
            f"{self.parameter}: the entry point {shown(point.name)} of {_package(point)} is"
            f" {shown(found)}, expected a subclass of {_full_name(self.base)}."
        )

    def _origin(self, name: str) -> str:
        if name in self.built_in:
            return "built-in"
        points = self._installed.select(name=name)
        if points:
            return ", ".join(sorted({_package(point) for point in points}))
        return _file(self._classes[name])


@cache
def installed_in(group: str) -> EntryPoints:
    """Return what installed packages offer in a group, read once: that opens hundreds of files."""
    return entry_points(group=group)


def is_file(name: str) -> bool:
    """Whether it names a file, with or without the class in it; without is an error to explain."""
    return is_class_spec(name) or name.endswith(".py")


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else point.value


def _is_same(one: type, other: type) -> bool:
    """Whether two classes are one, loaded twice: by path and as a script, or from a copied file."""
    if one.__qualname__ != other.__qualname__:
        return False
    if _file(one) == _file(other):
        return True
    pairs = ((one, other), (other, one))
    if any(module_name(Path(_file(a))) == b.__module__ for a, b in pairs):
        return True  # the plug-in's module is no longer there
    label = plugin_label(one.__module__)
    return label is not None and label == plugin_label(other.__module__)


def _file(found: type) -> str:
    file = getattr(sys.modules.get(found.__module__), "__file__", None)
    return str(Path(file).resolve()) if file else found.__module__


def _full_name(found: type) -> str:
    return f"{found.__module__}.{found.__qualname__}"
