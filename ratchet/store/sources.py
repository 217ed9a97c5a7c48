"""What one Python source file says: a digest without its looks, and what it imports.

Below the code fingerprint. Docstrings, comments, formatting and what only type checkers read
do not count, so that tidying a file makes nobody's stages anew.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.errors import StageKeyError

_LEFT_OUT = frozenset({"ctx", "type_comment", "kind"})
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


@dataclass(frozen=True)
class Import:
    """``import module`` (no names) or ``from module import names``, ``level`` dots before it."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


@dataclass(frozen=True)
class SourceFacts:
    """What a source file says.

    ``digest`` is the SHA-256 of its normalised syntax tree, ``imports`` all that it imports when
    it runs, also inside functions. For packages that re-export: ``exports`` maps a name to the
    import that brings it, ``homes`` to the module it is lazily taken from (``_HOMES``), and
    ``defined`` holds the names made in the file itself. ``attributes`` are all names that follow
    a dot somewhere, and so may be asked of an imported package.
    """

    digest: str
    imports: tuple[Import, ...]
    exports: dict[str, tuple[Import, str]]
    homes: dict[str, str]
    defined: frozenset[str]
    attributes: frozenset[str]


@dataclass(frozen=True)
class Source:
    """A module and the file it lies in. ``label`` is its name without any place.

    ``package`` is where its imports by dots start from, where its name doesn't say it.
    """

    path: Path
    module: str
    label: str
    package: str = ""

    @property
    def is_package(self) -> bool:
        """Whether it is the ``__init__`` of a package."""
        return self.path.name == "__init__.py"

    def absolute(self, target: Import) -> str:
        """Return the full name of a module that this one imports, perhaps by dots."""
        if not target.level:
            return target.module
        own = self.module if self.is_package else self.module.rpartition(".")[0]
        parents = (self.package or own).split(".")
        keep = len(parents) - target.level + 1
        return ".".join(filter(None, [*parents[: max(keep, 0)], target.module]))


_BY_STAMP: dict[Path, tuple[tuple[int, ...], SourceFacts]] = {}
_BY_SPEC: dict[Path, tuple[object, SourceFacts]] = {}


def read_source(source: Source) -> SourceFacts:
    """Read a source file, or remember it.

    A file is read again when its times or size change. Once a module is loaded and has been
    read, what was read stays until the module is loaded again: what counts is the code that
    runs, not what an editor has put in its place meanwhile.

    Raises
    ------
    StageKeyError
        If the file can't be read as Python.
    """
    spec = getattr(sys.modules.get(source.module), "__spec__", None)
    if spec is not None and getattr(spec, "origin", None) == str(source.path):
        known = _BY_SPEC.get(source.path)
        if known is None or known[0] is not spec:
            known = _BY_SPEC[source.path] = (spec, _read_current(source.path))
        return known[1]
    return _read_current(source.path)


def _read_current(path: Path) -> SourceFacts:
    try:
        status = os.stat(path)
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        known = _BY_STAMP.get(path)
        if known is None or known[0] != stamp:
            known = _BY_STAMP[path] = (stamp, read_facts(path.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        raise StageKeyError(
            f"code fingerprint: {path} can't be read as Python: {error}. Without it the stage has"
            " no key; mend the file."
        ) from error
    return known[1]


def read_facts(text: bytes) -> SourceFacts:
    """Read the facts from a source text.

    Raises
    ------
    SyntaxError
        If it is not Python.
    """
    tree = ast.parse(text)
    reader = _Reader()
    for statement in tree.body:
        reader.read_top(statement)
    reader.write(tree)
    digest = hashlib.sha256(" ".join(reader.parts).encode("utf-8", "surrogatepass")).hexdigest()
    return SourceFacts(
        digest=digest,
        imports=tuple(reader.imports),
        exports=reader.exports,
        homes=reader.homes,
        defined=frozenset(reader.defined),
        attributes=frozenset(reader.attributes),
    )


@dataclass
class _Reader:
    """One walk over a syntax tree: its normalised text and its imports."""

    parts: list[str] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    exports: dict[str, tuple[Import, str]] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def write(self, node: ast.AST) -> None:
        """Add the node's text; fields that are None or empty are left out.

        So a Python version that adds a field to the syntax changes no digest.
        """
        kind = node.__class__
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = tuple(f for f in kind._fields if f not in _LEFT_OUT)
        if kind in (ast.Import, ast.ImportFrom, ast.Call):
            self.imports.extend(_imports_of(node))
        elif isinstance(node, ast.Attribute):
            self.attributes.add(node.attr)
        self.parts.append("(" + kind.__name__)
        for name in fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                if value:
                    self.parts.append(name)
                    self._write_list(value)
            elif isinstance(value, ast.AST):
                self.parts.append(name)
                self.write(value)
            elif value is not None or kind is ast.Constant:
                self.parts.append(f"{name} {value!r}")
        self.parts.append(")")

    def _write_list(self, items: list[ast.AST | str | None]) -> None:
        self.parts.append("[")
        self._write_items(items)
        self.parts.append("]")

    def _write_items(self, items: Sequence[ast.AST | str | None]) -> None:
        for item in items:
            if isinstance(item, ast.If) and _is_type_checking(item.test):
                self._write_items(item.orelse)
            elif not isinstance(item, ast.AST):
                self.parts.append(repr(item))
            elif not _is_bare_text(item):
                self.write(item)

    def read_top(self, node: ast.stmt) -> None:
        """Note which names a statement at the top of a module makes or brings."""
        if isinstance(node, ast.If | ast.Try):
            handlers = node.handlers if isinstance(node, ast.Try) else []
            for inner in [*node.body, *node.orelse, *(s for h in handlers for s in h.body)]:
                self.read_top(inner)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                target = Import(node.module or "", (alias.name,), node.level)
                self.exports[alias.asname or alias.name] = (target, alias.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            self.defined |= names
            if "_HOMES" in names and isinstance(node.value, ast.Dict):
                self.homes.update(_read_homes(node.value))


def _read_homes(node: ast.Dict) -> dict[str, str]:
    """Read ``{"name": "module"}`` or ``{"name": ("module", …)}``."""
    homes = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(value, ast.Tuple | ast.List) and value.elts:
            value = value.elts[0]
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
            homes[str(key.value)] = str(value.value)
    return homes


def _imports_of(node: ast.AST) -> list[Import]:
    if isinstance(node, ast.Import):
        return [Import(alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [Import(node.module or "", tuple(a.name for a in node.names), node.level)]
    if isinstance(node, ast.Call) and node.args:
        called, first = node.func, node.args[0]
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name == "import_module" and isinstance(first, ast.Constant):
            text = first.value
            if isinstance(text, str) and not text.startswith("."):
                return [Import(text)]
    return []


def _is_type_checking(test: ast.expr) -> bool:
    if isinstance(test, ast.Attribute):
        return test.attr == "TYPE_CHECKING"
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _is_bare_text(node: ast.AST) -> bool:
    """Whether it is a text that stands alone: a docstring, or a comment in a string's clothes."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
