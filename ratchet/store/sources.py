"""Definitions of a Python source file: their normalised text and the names that they use.

Docstrings, comments, formatting, annotations of functions and the messages of Ratchet's errors are
not part of a definition's text.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from ratchet.lazy import reexports
from ratchet.store.keys import canonical_json
from ratchet.syntax import parse_python

COMPLETE = "*"
"""Stands for all definitions of a module."""
ON_IMPORT = ""
"""Name of the definition that consists of all statements which do more than define a name."""

_IGNORED_FIELDS = frozenset({"ctx", "type_comment", "kind"})
_ANNOTATIONS = {
    (ast.FunctionDef, "returns"),
    (ast.AsyncFunctionDef, "returns"),
    (ast.arg, "annotation"),
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_MODULE = re.compile(r"\b((?:ratchet|trainers|tasks)(?:\.\w+)+)(?::(\w+))?")
IN_TEXT = -1
_READS_DOCSTRINGS = re.compile(rb"__doc__|getdoc|json_schema|@(\w+\.)*tool\b")
"""In files with one of these, docstrings are data: prompts, or descriptions of tools."""
_VALIDATORS = frozenset({"field_validator", "model_validator", "field_serializer"})
_PLAIN_DECORATORS = frozenset(
    {"dataclass", "cache", "lru_cache", "wraps", "contextmanager", "asynccontextmanager"}
    | {"property", "cached_property", "setter", "staticmethod", "classmethod", "abstractmethod"}
    | {"stage", "waiting_stage", "task"}
    | {"override", "overload", "final", "runtime_checkable", "total_ordering"}
    | {"no_grad", "inference_mode"}
)
"""Decorators that register nothing: a definition with one counts only if it is used."""


@dataclass(frozen=True, order=True)
class Import:
    """``import module`` (no name) or ``from module import name``, with ``level`` leading dots.

    The level is :data:`IN_TEXT` for ``module`` or ``module:name`` in a text.
    """

    module: str
    name: str = ""
    level: int = 0


@dataclass(frozen=True)
class Definition:
    """A function, class or variable of a module.

    Attributes
    ----------
    digest
        SHA-256 of its normalised syntax tree.
    uses
        The names that it reads, each with the attributes that it reads of it; None if the name is
        used in a different way too.
    attributes
        All names that follow a dot in it, and all words in its strings: they may be such names.
    imports
        Its imports, by the name that each binds.
    """

    digest: str
    uses: dict[str, frozenset[str] | None]
    attributes: frozenset[str]
    imports: tuple[tuple[str, Import], ...]


@dataclass(frozen=True)
class SourceFacts:
    """The definitions of a source file.

    Attributes
    ----------
    digest
        SHA-256 of the file's complete normalised syntax tree, annotations and messages included.
    strings
        All texts in the file: they may name other files.
    definitions
        By name; several of one name count as one. :data:`ON_IMPORT` counts if any other does.
    bindings
        The imports at the top of the file by the name they bind; several may bind one.
    homes
        Names that a package imports lazily from other modules (:func:`ratchet.lazy.reexports`).
    """

    digest: str
    strings: frozenset[str]
    definitions: dict[str, Definition]
    bindings: dict[str, tuple[Import, ...]]
    homes: dict[str, str]
    classes: dict[str, ClassFacts]

    @cached_property
    def imported_packages(self) -> frozenset[str]:
        """The first part of each module that is imported anywhere in the file, by its full name."""
        inner = [target for each in self.definitions.values() for _, target in each.imports]
        targets = [*itertools.chain.from_iterable(self.bindings.values()), *inner]
        return frozenset(each.module.partition(".")[0] for each in targets if not each.level)


@dataclass(frozen=True)
class ClassFacts:
    """Names of a class's bases, None for one that is not a plain name, and of its methods.

    Each method is a definition ``Class.method``, except those that run on import or by syntax. So
    are the fields of parameters together, by the name of :func:`created`.
    """

    bases: tuple[str | None, ...]
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A module and its file. ``label`` is its name without any location.

    ``package`` is the start of its relative imports if its name doesn't contain that.
    """

    path: Path
    module: str
    label: str
    package: str = ""

    @cached_property
    def is_package(self) -> bool:
        """Whether it is the ``__init__`` of a package."""
        return self.path.name == "__init__.py"

    def absolute(self, target: Import) -> str:
        """Return the full name of a module that this one imports, perhaps relatively."""
        if target.level <= 0:
            return target.module
        package = self.module if self.is_package else self.module.rpartition(".")[0]
        parents = (self.package or package).split(".")
        keep = max(len(parents) - target.level + 1, 0)
        return ".".join(filter(None, [*parents[:keep], target.module]))


def read_facts(text: bytes) -> SourceFacts:
    """Read the facts from a source text."""
    tree = parse_python(text)
    complete = _DefinitionReader(None, keeps_docstrings=bool(_READS_DOCSTRINGS.search(text)))
    complete.write(tree)  # first: the module's reader removes parts of the tree
    reader = _ModuleReader()
    reader.read(tree.body)
    used = {name for each in reader.definitions.values() for name in each.uses}
    unused = [(n, each) for n in reader.bindings.keys() - used for each in reader.bindings[n]]
    if unused:  # they may be imported for their effects
        reader.definition(ON_IMPORT).imports += sorted(unused)
    return SourceFacts(
        digest=complete.finish().digest,
        strings=frozenset(complete.strings),
        definitions={name: each.finish() for name, each in reader.definitions.items()},
        bindings=reader.bindings,
        homes=reader.homes,
        classes=reader.classes,
    )


@dataclass
class _ModuleReader:
    """Walk over the statements at the top of a module."""

    definitions: dict[str, _DefinitionReader] = field(default_factory=dict)
    bindings: dict[str, tuple[Import, ...]] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    classes: dict[str, ClassFacts] = field(default_factory=dict)

    def read(self, statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._bind(node)
            elif _is_type_checking(node):
                self.homes |= reexports([node])
                self.read(node.orelse)
            elif not _is_docstring(node):
                self._read_definition(node)

    def _bind(self, node: ast.AST) -> None:
        for name, target in _imports_in(node):
            self.bindings[name] = (*self.bindings.get(name, ()), target)

    def definition(self, name: str) -> _DefinitionReader:
        return self.definitions.setdefault(name, _DefinitionReader(self.bindings))

    def _read_definition(self, node: ast.stmt) -> None:
        names = _names_defined(node)
        if isinstance(node, ast.ClassDef):
            self._read_methods(node)
        for name in names or [ON_IMPORT]:
            self.definition(name).write(node)
        if names and _has_effects(node):  # it runs on import, whether its name is used or not
            self.definition(ON_IMPORT).uses[names[0]] = None
        elif not names:  # names that a compound statement defines or imports lead to its text
            for inner in ast.walk(node):
                self._bind(inner)
                for name in _names_defined(inner):
                    self.definition(name).uses[ON_IMPORT] = None

    def _read_methods(self, node: ast.ClassDef) -> None:
        """Remove the methods that run only when they are called by name from a class."""
        apart: dict[ast.stmt, str] = {e: e.name for e in node.body if _is_method(e)}
        for each in node.body:
            if _is_in_key(each, node):
                apart[each] = created(node.name)
                self.definition(node.name).note_all(getattr(each, "annotation", None))
        for each, name in apart.items():
            self.definition(f"{node.name}.{name}").write(each)
        node.body = [each for each in node.body if each not in apart]
        bases = tuple(base.id if isinstance(base, ast.Name) else None for base in node.bases)
        self.classes[node.name] = ClassFacts(bases, tuple(dict.fromkeys(apart.values())))


@dataclass
class _DefinitionReader:
    """Walk over a definition's syntax tree: its normalised text and the names it uses.

    ``bindings`` are the module's imports so far. Without them, the text is complete: annotations
    and messages are part of it.
    """

    bindings: dict[str, tuple[Import, ...]] | None
    parts: list[str] = field(default_factory=list)
    uses: dict[str, frozenset[str] | None] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    imports: list[tuple[str, Import]] = field(default_factory=list)
    strings: set[str] = field(default_factory=set)
    keeps_docstrings: bool = False
    _by_attribute: set[int] = field(default_factory=set)

    def finish(self) -> Definition:
        text = " ".join(self.parts).encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(text).hexdigest()
        return Definition(digest, self.uses, frozenset(self.attributes), tuple(self.imports))

    def write(self, node: ast.AST) -> None:
        """Add the node's text without fields that are None or empty.

        So a Python version that adds a field to the syntax changes no digest.
        """
        kind = node.__class__
        self._note_uses(node)
        self.parts.append("(" + kind.__name__)
        for name in _fields(kind):  # type: ignore[arg-type]  # of typeshed
            value = getattr(node, name, None)
            if self.bindings is not None and (kind, name) in _ANNOTATIONS:
                self.note_all(value)
            elif isinstance(value, list):
                if value:
                    self.parts += [name, "["]
                    self._write_items(value)
                    self.parts.append("]")
            elif isinstance(value, ast.AST):
                self.parts.append(name)
                self.write(value)
            elif value is not None or kind is ast.Constant:
                self.parts.append(f"{name} {value!r}")
        self.parts.append(")")

    def _write_items(self, items: Sequence[ast.AST | str | None]) -> None:
        for item in items:
            if not isinstance(item, ast.AST):
                self.parts.append(repr(item))
            elif _is_type_checking(item):
                self._write_items(item.orelse)
            elif self.keeps_docstrings or not _is_docstring(item):
                self._remove_message(item)
                self.write(item)

    def _remove_message(self, node: ast.AST) -> None:
        """Remove the message where one of Ratchet's errors is raised: it affects no result."""
        if self.bindings is None or not isinstance(node, ast.Raise):
            return
        call = node.exc
        bound = self.bindings.get(getattr(getattr(call, "func", None), "id", ""), ())
        if isinstance(call, ast.Call) and any(each.module == "ratchet.errors" for each in bound):
            for message in filter(_is_text, call.args):
                for each in ast.walk(message):
                    if not isinstance(each, ast.Constant):
                        self._note_uses(each)
            call.args = [arg for arg in call.args if not _is_text(arg)]

    def _note_uses(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            self.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.attributes.update(_NAME.findall(node.value))
            self.strings.add(node.value)
        elif isinstance(node, ast.MatchClass):
            self.attributes.update(node.kwd_attrs)
        elif isinstance(node, ast.Call):
            self.attributes.add(created(_called_name(node)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self._by_attribute.add(id(node.value))
            others = self.uses.get(node.value.id, frozenset())
            self.uses[node.value.id] = None if others is None else others | {node.attr}
        elif isinstance(node, ast.Name) and id(node) not in self._by_attribute:
            self.uses[node.id] = None
        self.imports += _imports_in(node)

    def note_all(self, node: object) -> None:
        """Note the names in an annotation, which is not part of the text."""
        if isinstance(node, ast.AST):
            for inner in ast.walk(node):
                self._note_uses(inner)
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    self.uses |= dict.fromkeys(_NAME.findall(inner.value))


def _names_defined(node: ast.AST) -> list[str]:
    """Return the names that a statement defines, if it only defines names."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
    names = [target.id for target in flat if isinstance(target, ast.Name)]
    return names if len(names) == len(flat) else []


def _has_effects(node: ast.stmt) -> bool:
    """Return whether a definition may do more than define: by a decorator or a class keyword."""
    if isinstance(node, ast.ClassDef) and any(k.arg != "metaclass" for k in node.keywords):
        return True
    decorators = getattr(node, "decorator_list", [])
    return any(_called_name(decorator) not in _PLAIN_DECORATORS for decorator in decorators)


def _called_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_method(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not node.name.startswith("__") and not _has_effects(node)


def created(name: str) -> str:
    """Return the name of the part of a class that counts where code creates an instance."""
    return f"{name}()"


def _is_in_key(node: ast.stmt, owner: ast.ClassDef) -> bool:
    """Return whether a statement is a field of parameters, or a validator of one.

    A stage's key contains the values of the parameters that it reads. So an additional field, or a
    different default or check of one, changes no result, unless code creates the parameters.
    """
    if not any(_called_name(base).endswith("Parameters") for base in owner.bases):
        return False
    if isinstance(node, ast.AnnAssign):
        is_private = _called_name(node.target).startswith("_")
        return not is_private and "ClassVar" not in ast.unparse(node.annotation)
    return any(_called_name(d) in _VALIDATORS for d in getattr(node, "decorator_list", []))


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(name for name in kind._fields if name not in _IGNORED_FIELDS)


def _imports_in(node: ast.AST) -> list[tuple[str, Import]]:
    """Return the imports of a node, by the name that each binds ("" for none)."""
    if isinstance(node, ast.Import):
        return [(a.asname or a.name.partition(".")[0], Import(a.name)) for a in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [(a.asname or a.name, Import(module, a.name, node.level)) for a in node.names]
    if isinstance(node, ast.Call) and _called_name(node) == "import_module" and node.args:
        text = getattr(node.args[0], "value", None)
        if isinstance(text, str):
            name = text.lstrip(".")
            return [("", Import(name, level=len(text) - len(name)))]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [("", Import(m[1], m[2] or "", IN_TEXT)) for m in _MODULE.finditer(node.value)]
    return []


def _is_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and _called_name(node.test) == "TYPE_CHECKING"


def _is_text(node: ast.expr) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr)


def _is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is only a string: a docstring, or a comment."""
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and _is_text(node.value)
    )


def digest_definitions(source: Source, facts: SourceFacts, names: frozenset[str]) -> str:
    """Return the digest of a module's reached definitions and of the imports that they use."""
    if COMPLETE in names:
        return facts.digest
    reached = {name: facts.definitions[name] for name in names & facts.definitions.keys()}
    used = {name for definition in reached.values() for name in definition.uses}
    text = [
        {name: definition.digest for name, definition in reached.items()},
        {
            name: [[source.absolute(each), each.name] for each in targets]
            for name, targets in facts.bindings.items()
            if name in used
        },
    ]
    return hashlib.sha256(canonical_json(text)).hexdigest()
