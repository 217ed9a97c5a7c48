"""The definitions that a class uses, directly or indirectly, found without running any code.

Only the project's packages and the user's plug-ins are followed. An ``__init__`` of the project
counts only for names that it defines, since otherwise it only re-exports lazily; a plug-in's
package counts with its ``__init__`` files.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from ratchet.errors import StageKeyError
from ratchet.plugins import FOLDER_PREFIX, folder_package
from ratchet.shadowing import ROOT
from ratchet.store.infrastructure import is_infrastructure
from ratchet.store.module_files import (
    is_library,
    may_import_from,
    package_folders,
    source_file,
    uninstalled_location,
)
from ratchet.store.source_cache import read_source
from ratchet.store.sources import (
    COMPLETE,
    IN_TEXT,
    ON_IMPORT,
    Definition,
    Import,
    Source,
    SourceFacts,
    digest_definitions,
)

PROJECT_PACKAGES = ("ratchet", "trainers", "tasks", "flows")
_PASSIVE = frozenset(
    {"torch", "numpy", "tensordict", "scipy", "networkx", "pydantic", "safetensors"}
)
"""Libraries that call methods only of classes which derive from theirs."""
_NOT_CALLING = sys.stdlib_module_names | _PASSIVE | frozenset(PROJECT_PACKAGES)
_PLAIN_BASES = frozenset(
    {"ABC", "Protocol", "Generic", "NamedTuple", "TypedDict", "Enum", "StrEnum"}
)
_PATH = re.compile(r"(?!.*\.\.)\w[\w ./-]{0,199}")
"""A text that may be the path of a file next to a plug-in."""
_CALLED_BY_PYTHON = frozenset(
    {"keys", "close", "read", "readline", "write", "flush", "seek", "tell", "acquire", "release"}
    | {"_missing_", "_generate_next_value_"}
)
"""Methods that Python itself, or its library, calls by name."""


def _project_folders() -> dict[str, tuple[Path, ...]]:
    """Return the folders of the project's packages, next to this one regardless of the path."""
    return {name: (ROOT / name,) for name in PROJECT_PACKAGES if (ROOT / name).is_dir()}


@dataclass
class DefinitionUses:
    """Definitions of the project that one uses, and its imports of other code.

    Where these lead depends on the plug-ins of a closure.
    """

    definitions: list[tuple[Source, str]] = field(default_factory=list)
    imports: list[tuple[Source, Import, frozenset[str] | None]] = field(default_factory=list)


@dataclass
class KnownCode:
    """Code that closures have read, for others of the same time, e.g. of a plan's stages.

    Attributes
    ----------
    located
        Modules of the project by name; None for names that are no modules.
    facts
        Facts of each source.
    digests
        Digests of reached definitions, by source and names.
    uses
        Uses of the project's definitions, by source and name.
    shared
        Closures of objects that several stages use, to be extended by objects that only one uses.
    closures
        Digests of modules by the definitions from which they were followed.
    """

    located: dict[str, Source | None] = field(default_factory=dict)
    facts: dict[Path, SourceFacts] = field(default_factory=dict)
    digests: dict[tuple[Path, frozenset[str]], str] = field(default_factory=dict)
    uses: dict[tuple[Path, str], DefinitionUses] = field(default_factory=dict)
    shared: dict[object, Closure] = field(default_factory=dict)
    closures: dict[object, dict[str, str]] = field(default_factory=dict)


@dataclass
class Closure:
    """The definitions reached so far, and those whose uses must still be followed.

    ``folders`` are the locations of plug-in files, ``packages`` those of packages by name. A
    plug-in's complete file counts: its only definition is :data:`COMPLETE`. ``followed`` are the
    imports that were followed, by module, name and used attributes. ``attributes`` are the names
    that follow a dot in reached definitions, ``methods`` the reached classes' methods whose names
    don't follow any yet. ``files`` are the data files that plug-ins name. Infrastructure is
    followed, since it calls other code, but is not part of the digests. ``excluded`` definitions,
    by module and name, are not followed.
    """

    excluded: Sequence[tuple[str, str]] = ()
    sources: dict[Path, Source] = field(default_factory=dict)
    reached: dict[Path, set[str]] = field(default_factory=dict)
    pending: list[tuple[Source, str]] = field(default_factory=list)
    followed: set[tuple[object, ...]] = field(default_factory=set)
    attributes: set[str] = field(default_factory=lambda: set(_CALLED_BY_PYTHON))
    files: dict[Path, str] = field(default_factory=dict)
    has_plugins: bool = False
    methods: dict[str, list[tuple[Source, str]]] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    packages: dict[str, tuple[Path, ...]] = field(default_factory=lambda: dict(_project_folders()))
    _located: dict[str, Source | None] = field(default_factory=dict)
    _located_elsewhere: dict[str, Source | None] = field(default_factory=dict)
    _followed_elsewhere: set[tuple[object, ...]] = field(default_factory=set)
    """Locations and imports outside the project, which depend on the plug-ins reached so far."""
    _facts: dict[Path, SourceFacts] = field(default_factory=dict)
    _digests: dict[tuple[Path, frozenset[str]], str] = field(default_factory=dict)
    _uses: dict[tuple[Path, str], DefinitionUses] = field(default_factory=dict)

    @classmethod
    def sharing(cls, code: KnownCode, excluded: Sequence[tuple[str, str]] = ()) -> Closure:
        """Create an empty closure that reuses code read by others."""
        return cls(
            excluded,
            _located=code.located,
            _facts=code.facts,
            _digests=code.digests,
            _uses=code.uses,
        )

    def copy(self) -> Closure:
        """Return a closure to extend without changing this one, which has nothing pending."""
        return replace(
            self,
            sources=dict(self.sources),
            reached={path: set(names) for path, names in self.reached.items()},
            pending=[],
            followed=set(self.followed),
            attributes=set(self.attributes),
            files=dict(self.files),
            methods={name: list(methods) for name, methods in self.methods.items()},
            folders=list(self.folders),
            packages=dict(self.packages),
            _located_elsewhere=dict(self._located_elsewhere),
            _followed_elsewhere=set(self._followed_elsewhere),
        )

    def add_object(self, item: object) -> None:
        """Add a module, or a class or function with its bases and metaclasses."""
        if isinstance(item, ModuleType):
            self._add_named(item.__name__, item)
            return
        module = getattr(item, "__module__", None) if callable(item) else None
        if not isinstance(module, str):
            raise StageKeyError(
                f"code fingerprint: got {item!r}, expected a class, function or module with a"
                " source."
            )
        self._add_named(module, item)
        if isinstance(item, type):
            for base in (*inspect.getmro(item)[1:], *inspect.getmro(type(item))):
                path = source_file(sys.modules.get(base.__module__))
                if path is not None and not is_library(path):
                    self._add_named(base.__module__, base)
                elif (source := self.locate(base.__module__)) is not None:
                    self._reach_object(source, base)

    def add_definition(self, module: str, name: str) -> None:
        """Add a definition of a module, or the import that binds the name; none of libraries."""
        source = self.locate(module)
        if source is None and not is_project(module):
            return
        if source is None:
            raise StageKeyError(f"code fingerprint: found no source of module {module!r}.")
        self._follow_name(module, name, None)

    def _add_named(self, name: str, item: object) -> None:
        path = source_file(sys.modules.get(name))
        if path is None:
            raise StageKeyError(
                f"code fingerprint: {item!r} is in module {name!r}, which has no source file, so"
                " that a later change could not be detected. Put it in a .py file and import it."
            )
        top = name.partition(".")[0]
        source = self.locate(name)
        if source is None and "." in name and (folders := package_folders(sys.modules.get(top))):
            self.packages[top] = folders
            self._forget_locations()
            source = self.locate(name)
        if source is not None and source.path == path:
            self._reach_object(source, item)
        else:
            self.add_file(path, name)

    def add_file(self, path: Path, module: str) -> None:
        """Add a file that is not part of a package, and let it import those next to it."""
        if not is_library(path) and path.parent not in self.folders:
            self.add_folder(path.parent)
        package = folder_package(path.parent)
        self.packages[package] = (path.parent,)
        self._forget_locations()
        self._reach(Source(path, module, path.stem, package), COMPLETE)

    def add_folder(self, folder: Path) -> None:
        """Let plug-ins import the modules of a folder."""
        self.folders.append(folder)
        self._forget_locations()

    def _forget_locations(self) -> None:
        """Search for modules outside the project again, since there are more plug-ins."""
        self._located_elsewhere.clear()
        self._followed_elsewhere.clear()

    def _reach_object(self, source: Source, item: object) -> None:
        name = COMPLETE
        if not isinstance(item, ModuleType):
            name = str(getattr(item, "__qualname__", COMPLETE)).partition(".")[0]
            if name not in self.read(source).definitions:
                name = COMPLETE  # it was created at run time
        self._reach(source, name)

    def _reach(self, source: Source, name: str) -> None:
        reached = self.reached.get(source.path, ())
        if name in reached or (source.module, name) in self.excluded:
            return
        if not is_project(source.module):
            name = COMPLETE
        if name not in reached:
            self.sources.setdefault(source.path, source)
            self.reached.setdefault(source.path, set()).add(name)
            self.pending.append((source, name))
            if not is_project(source.module):
                self._add_plugin(source)

    def _add_plugin(self, source: Source) -> None:
        """Add code that a plug-in may reach by computed names: any method, and files next to it."""
        self.has_plugins = True
        self._note_attributes({each for each in self.methods if each.isidentifier()})
        facts, home = self.read(source), source.path.parent
        names = sorted(each for each in facts.strings if _PATH.fullmatch(each))
        folders = [home, *(home / each for each in names if (home / each).is_dir())]
        for path in [folder / each for folder in folders for each in names]:
            if path.suffix != ".py" and path.is_file():
                self.files[path] = path.relative_to(home).as_posix()
            elif "importlib" in facts.imported_packages and path.with_suffix(".py").is_file():
                self.add_file(path.with_suffix(".py"), path.stem)

    def read(self, source: Source) -> SourceFacts:
        """Read a source once, so that all of the closure is of one time."""
        facts = self._facts.get(source.path)
        if facts is None:
            facts = self._facts[source.path] = read_source(source)
        return facts

    @property
    def read_sources(self) -> list[tuple[Source, SourceFacts]]:
        """The reached sources, with their facts."""
        return [(source, self._facts[path]) for path, source in self.sources.items()]

    def locate(self, name: str) -> Source | None:
        """Find the source of a module by name, if it is the project's or a plug-in's."""
        located = self._located if is_project(name) else self._located_elsewhere
        if name not in located:
            located[name] = self._find(name)
        return located[name]

    def _find(self, name: str) -> Source | None:
        top, *rest = name.split(".")
        in_folder = top.startswith(FOLDER_PREFIX)
        if in_folder and not rest:
            return None  # it stands for a folder and has no source
        label = ".".join(rest) if in_folder else name
        folders = self.packages.get(top)
        if folders is None:
            near = [folder / top for folder in self.folders if may_import_from(top, folder)]
            folders = (*near, *uninstalled_location(top))
        for folder in folders:
            base = os.path.join(folder, *rest)
            for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if os.path.isfile(path):
                    return Source(Path(path), name, label)
        return None

    def follow(self) -> None:
        """Add all definitions that the reached ones use, directly or indirectly."""
        while self.pending:
            source, name = self.pending.pop()
            facts = self.read(source)
            if name == COMPLETE:
                definitions = facts.definitions
            else:
                reached = self.reached[source.path]
                is_started = ON_IMPORT in reached or source.is_package
                names = (name,) if is_started else (name, ON_IMPORT)
                reached.update(names)
                definitions = {n: facts.definitions[n] for n in names if n in facts.definitions}
            in_project = is_project(source.module)
            for each, definition in definitions.items():
                self._note_attributes(definition.attributes)
                if in_project:
                    self._follow_uses(source, each, definition)
                else:
                    self._follow_definition(source, facts, definition)
            if name in facts.classes:
                self._add_methods(source, name, facts.classes[name].methods)

    def _follow_uses(self, source: Source, name: str, definition: Definition) -> None:
        """Reach what a definition of the project uses, which is found once for all closures."""
        uses = self._uses.get((source.path, name))
        if uses is None:
            finder = _UsesFinder(_located=self._located, _facts=self._facts)
            finder._follow_definition(source, self.read(source), definition)
            uses = self._uses[source.path, name] = finder.uses
        for home, used in uses.definitions:
            if used not in self.reached.get(home.path, ()):  # most are, and a call takes longer
                self._reach(home, used)
        for importing, target, attributes in uses.imports:
            self._follow_import(importing, target, attributes)

    def _follow_definition(self, source: Source, facts: SourceFacts, used: Definition) -> None:
        for name, attributes in used.uses.items():
            if name in facts.definitions:
                self._reach(source, name)
            for target in facts.bindings.get(name, ()):
                self._follow_import(source, target, attributes)
        for name, target in used.imports:
            self._follow_import(source, target, used.uses.get(name))

    def _note_attributes(self, names: Set[str]) -> None:
        for name in names - self.attributes:
            self.attributes.add(name)
            for home, method in self.methods.pop(name, ()):
                self._reach(home, method)

    def _add_methods(self, source: Source, name: str, methods: tuple[str, ...]) -> None:
        """Add a class's methods whose names are used, or all if a library may call them."""
        is_open = self.has_plugins or self._is_open(source, name)
        for method in methods:
            if method in self.attributes or (is_open and method.isidentifier()):
                self._reach(source, f"{name}.{method}")
            else:
                self.methods.setdefault(method, []).append((source, f"{name}.{method}"))

    def _is_open(self, source: Source, name: str) -> bool:
        """Return whether libraries may call a class: by its bases or its module's imports."""
        facts = self.read(source)
        if name not in facts.classes or facts.imported_packages - _NOT_CALLING:
            return True
        return any(self._is_open_base(source, facts, base) for base in facts.classes[name].bases)

    def _is_open_base(self, source: Source, facts: SourceFacts, base: str | None) -> bool:
        if base in facts.classes:
            return self._is_open(source, str(base))
        for bound in facts.bindings.get(base or "", (Import(""),)):
            module = source.absolute(bound)
            home = self._home(module, bound.name) if bound.name else None
            if home is None and bound.name not in _PLAIN_BASES:
                return True
            if home is not None and self._is_open(home, bound.name):
                return True
        return False

    def _home(self, module: str, name: str) -> Source | None:
        """Return the source of the project's module that defines a name."""
        source = self.locate(module)
        if source is None:
            return None
        facts = self.read(source)
        if name in facts.homes:
            return self._home(facts.homes[name], name)
        if name in facts.bindings:
            *_, target = facts.bindings[name]
            return self._home(source.absolute(target), target.name)
        return source

    def _follow_import(
        self, source: Source, target: Import, attributes: frozenset[str] | None
    ) -> None:
        """Add the used ``attributes`` of an import's target (None: all)."""
        module = source.absolute(target)
        followed = self.followed if is_project(module) else self._followed_elsewhere
        if (source.path, target, attributes) in followed:
            return
        followed.add((source.path, target, attributes))
        if target.level == IN_TEXT:
            home = self.locate(module)
            if home is None or home.is_package or is_infrastructure(source.module):
                return  # tables of infrastructure name code that is a root where it counts
        parts = [] if is_project(module) else module.split(".")
        for length in range(1, len(parts)):  # an import runs its packages' __init__ files first
            parent = self.locate(".".join(parts[:length]))
            if parent is not None:
                self._reach(parent, COMPLETE)
        if target.name:
            self._follow_name(module, target.name, attributes)
        else:
            self._add_module(module, attributes)

    def _add_module(self, name: str, attributes: frozenset[str] | None) -> None:
        """Add the used attributes of a module (None: all)."""
        source = self.locate(name)
        if source is None:
            return
        if attributes is None:
            self._reach(source, COMPLETE)
            attributes = frozenset(self.read(source).homes)
        for attribute in sorted(attributes):
            self._follow_name(name, attribute, None)

    def _follow_name(self, module: str, name: str, attributes: frozenset[str] | None) -> None:
        """Add the target of ``from module import name``."""
        if (module, name, attributes) in self.followed:
            return
        self.followed.add((module, name, attributes))
        source = self.locate(module)
        if name == "*":
            self._add_module(module, None)
        elif self.locate(f"{module}.{name}") is not None:
            self._add_module(f"{module}.{name}", attributes)
        elif source is None:
            return
        elif not is_project(module):
            self._reach(source, COMPLETE)
        else:
            self._follow_definition_of(source, name, attributes)

    def _follow_definition_of(
        self, source: Source, name: str, attributes: frozenset[str] | None
    ) -> None:
        facts = self.read(source)
        if name in facts.definitions:
            self._reach(source, name)
        elif name in facts.bindings:
            for target in facts.bindings[name]:
                self._follow_import(source, target, attributes)
        elif name in facts.homes:
            self._follow_name(facts.homes[name], name, attributes)
        else:
            self._add_module(source.module, None)

    def digests(self) -> dict[str, str]:
        """Return each module's digest by label; equal labels from several folders get numbers."""
        by_label: dict[str, list[str]] = {}
        for path, source in self.sources.items():
            if is_infrastructure(source.module):
                continue  # it was followed, since it calls other code
            reached = path, frozenset(self.reached[path])
            if reached not in self._digests:
                self._digests[reached] = digest_definitions(source, self.read(source), reached[1])
            by_label.setdefault(source.label, []).append(self._digests[reached])
        for path, label in self.files.items():
            by_label.setdefault(label, []).append(hashlib.sha256(path.read_bytes()).hexdigest())
        return {
            label if number == 0 else f"{label}#{number + 1}": digest
            for label, digests in by_label.items()
            for number, digest in enumerate(sorted(digests))
        }


@dataclass
class _UsesFinder(Closure):
    """Finds the uses in a definition, without following them further."""

    uses: DefinitionUses = field(default_factory=DefinitionUses)

    def _reach(self, source: Source, name: str) -> None:
        self.uses.definitions.append((source, name))

    def _follow_import(
        self, source: Source, target: Import, attributes: frozenset[str] | None
    ) -> None:
        module = source.absolute(target)
        if is_project(module):
            super()._follow_import(source, target, attributes)
        elif module.partition(".")[0] not in sys.stdlib_module_names:
            self.uses.imports.append((source, target, attributes))


@functools.cache
def is_project(module: str) -> bool:
    """Return whether a name is that of a module of Ratchet, or of a definition in one."""
    return module.partition(".")[0] in PROJECT_PACKAGES
