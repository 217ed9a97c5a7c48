"""Which modules a class stands on: the closure over imports, found without running anything.

Below the code fingerprint. Only the project's packages and the user's plug-ins are followed. An
``__init__`` of the project counts only where it is asked for something of its own, since it
re-exports lazily and does nothing else; a plug-in's package is taken with its ``__init__`` files.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ratchet.errors import StageKeyError
from ratchet.plugins import FOLDER_PREFIX, folder_package
from ratchet.shadowing import ROOT
from ratchet.store.sources import Source, SourceFacts, read_source

PROJECT_PACKAGES = ("ratchet", "trainers", "tasks", "flows")
_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})


def _project_folders() -> dict[str, tuple[Path, ...]]:
    """Return where the project's packages lie: beside this one, whatever Python's path says."""
    return {name: (ROOT / name,) for name in PROJECT_PACKAGES if (ROOT / name).is_dir()}


@dataclass
class Closure:
    """The modules found so far, and those whose imports are still to be followed.

    ``folders`` are places of plug-in files, ``packages`` the places of packages by name, and
    ``asked`` the questions already answered.
    """

    sources: dict[Path, Source] = field(default_factory=dict)
    pending: list[Source] = field(default_factory=list)
    asked: set[tuple[Path, str | None, frozenset[str] | None]] = field(default_factory=set)
    folders: list[Path] = field(default_factory=list)
    packages: dict[str, tuple[Path, ...]] = field(default_factory=lambda: dict(_project_folders()))

    def add_object(self, item: object) -> None:
        """Add an object's module, and those of its bases and metaclasses."""
        name = item.__name__ if isinstance(item, ModuleType) else _module_name(item)
        self._add_named(name, item)
        if isinstance(item, ModuleType):
            self._add_module(name, None)
        if isinstance(item, type):
            for base in (*inspect.getmro(item)[1:], *inspect.getmro(type(item))):
                module = sys.modules.get(base.__module__)
                path = _file_of(module)
                if path is not None and not _is_library(path):
                    self._add_named(base.__module__, base)
                elif (found := self.locate(base.__module__)) is not None:
                    self._add(found)

    def _add_named(self, name: str, item: object) -> None:
        path = _file_of(sys.modules.get(name))
        if path is None:
            raise StageKeyError(
                f"code fingerprint: {item!r} lives in module {name!r}, which has no source file,"
                " so that a later change could not be seen. Put it in a .py file and import it."
            )
        top = name.partition(".")[0]
        found = self.locate(name)
        if found is None and "." in name:
            folders = _package_folders(sys.modules.get(top))
            if folders:
                self.packages[top] = folders
                found = self.locate(name)
        if found is not None and found.path == path:
            self._add(found)
        else:
            self.add_file(path, name)

    def add_file(self, path: Path, module: str) -> None:
        """Add a file that is no part of a package, and let it import those beside it."""
        if not _is_library(path) and path.parent not in self.folders:
            self.folders.append(path.parent)
        package = folder_package(path.parent)
        self.packages[package] = (path.parent,)
        self._add(Source(path, module, path.stem, package))

    def _add(self, source: Source) -> None:
        if source.path not in self.sources:
            self.sources[source.path] = source
            self.pending.append(source)

    def locate(self, name: str) -> Source | None:
        """Find the source of a module by name, if it is the project's or a plug-in's."""
        top, *rest = name.split(".")
        in_folder = top.startswith(FOLDER_PREFIX)
        if in_folder and not rest:
            return None  # it stands for a folder, and has no source
        label = ".".join(rest) if in_folder else name
        if top in self.packages:
            places = [str(place) for place in self.packages[top]]
        else:
            places = [str(folder / top) for folder in self.folders if _may_be(top, folder)]
        for place in places:
            base = os.path.join(place, *rest)
            for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if os.path.isfile(path):
                    return Source(Path(path), name, label)
        return None

    def follow(self) -> None:
        """Add all that the modules import, and all that these import, to the end."""
        while self.pending:
            source = self.pending.pop()
            facts = read_source(source)
            for target in facts.imports:
                name = source.absolute(target)
                self._add_parents(name)
                if target.names:
                    for attribute in target.names:
                        self._follow_name(name, attribute, facts.attributes)
                else:
                    self._add_module(name, facts.attributes)

    def _add_parents(self, name: str) -> None:
        """Add the ``__init__`` files that an import runs on its way, for plug-ins."""
        parts = name.split(".")
        if parts[0] in PROJECT_PACKAGES:
            return
        for length in range(1, len(parts)):
            parent = self.locate(".".join(parts[:length]))
            if parent is not None:
                self._add(parent)

    def _add_module(self, name: str, asked: frozenset[str] | None) -> None:
        """Add a module and, if it re-exports lazily, what may be asked of it (None: all)."""
        source = self.locate(name)
        if source is None:
            return
        self._add(source)
        if (source.path, None, asked) in self.asked:
            return
        self.asked.add((source.path, None, asked))
        for attribute, home in read_source(source).homes.items():
            if asked is None or attribute in asked:
                self._follow_name(home, attribute, asked)

    def _follow_name(self, module: str, attribute: str, asked: frozenset[str] | None) -> None:
        """Add what ``from module import attribute`` brings."""
        if attribute == "*":
            self._add_module(module, None)
            return
        if self.locate(f"{module}.{attribute}") is not None:
            self._add_module(f"{module}.{attribute}", asked)
            return
        source = self.locate(module)
        if source is None:
            return
        if not source.is_package:
            self._add(source)
        elif (source.path, attribute, asked) not in self.asked:
            self.asked.add((source.path, attribute, asked))
            self._follow_export(source, read_source(source), attribute, asked)

    def _follow_export(
        self, source: Source, facts: SourceFacts, attribute: str, asked: frozenset[str] | None
    ) -> None:
        """Add what a package's ``__init__`` gives under a name."""
        if source.module.partition(".")[0] not in PROJECT_PACKAGES:
            self._add(source)
        if attribute in facts.exports:
            target, original = facts.exports[attribute]
            self._follow_name(source.absolute(target), original, asked)
        elif attribute in facts.homes:
            self._follow_name(facts.homes[attribute], attribute, asked)
        elif attribute in facts.defined:
            self._add(source)
        else:
            self._add_module(source.module, None)

    def digests(self) -> dict[str, str]:
        """Return each module's digest by label; equal labels from several folders get numbers."""
        found: dict[str, list[str]] = {}
        for source in self.sources.values():
            found.setdefault(source.label, []).append(read_source(source).digest)
        modules = {}
        for label, digests in found.items():
            for number, digest in enumerate(sorted(digests)):
                modules[label if number == 0 else f"{label}#{number + 1}"] = digest
        return modules


def _may_be(top: str, folder: Path) -> bool:
    """Whether ``import top`` could mean a file in this folder, as things stand in the process."""
    if top in sys.stdlib_module_names:
        return False
    module = sys.modules.get(top)
    if module is None:
        return True
    if (file := _file_of(module)) is not None:
        return file in (folder / f"{top}.py", folder / top / "__init__.py")
    return folder / top in _package_folders(module)


def _module_name(item: object) -> str:
    name = getattr(item, "__module__", None)
    if not isinstance(item, type) and not callable(item):
        name = None
    if not isinstance(name, str):
        raise StageKeyError(
            f"code fingerprint: got {item!r}, expected a class, function or module with a source."
        )
    return name


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and str(file).endswith(".py") else None


def _package_folders(module: ModuleType | None) -> tuple[Path, ...]:
    return tuple(Path(place).resolve() for place in getattr(module, "__path__", ()))


@functools.cache
def _is_library(path: Path) -> bool:
    """Whether a file was installed, or came with Python."""
    if _LIBRARY_FOLDERS & set(path.parts):
        return True
    return path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
