"""Warnings about inputs that no key contains: files, environment variables, library versions."""

from __future__ import annotations

import ast
import glob
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

import yaml

from ratchet.shadowing import ROOT
from ratchet.store.closure import PROJECT_PACKAGES
from ratchet.store.module_files import is_library
from ratchet.syntax import parse_python
from ratchet.tracking.environment import changed_libraries
from tasks.stages.undeclared_files import changed_files, read_noted_files

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from tasks.stages.families import AnyKeys

_Item = TypeVar("_Item")
_MOST_NAMES = 5
_READERS = ("environ", "environb", "getenv", "getenvb")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of variables that must not become parameters, which are recorded."""


@dataclass
class UnseenInputs:
    """Collects what an experiment's stages read although no key contains it; each text once."""

    store: StageStore
    arms: Sequence[AnyKeys]
    _undeclared: set[str] = field(default_factory=set)
    _reported: set[object] = field(default_factory=set)

    def of_stage(self, manifest: Manifest, *, is_reused: bool) -> Iterator[str]:
        """Add a stage; yield what has changed since a reused one was computed."""
        noted = read_noted_files(self.store, manifest)
        self._undeclared |= noted.keys()
        if not is_reused:
            return
        if changed := self._new(changed_files(noted, self.arms[0].folder)):
            yield (
                f"{_list(changed)}: changed since the stored stage {manifest.stage!r} read"
                f" {'it' if len(changed) == 1 else 'them'}. The stage is reused, because no key"
                f" contains the content. To recompute it, add `{self._files(changed)}` to the"
                " experiment, or pass --recompute."
            )
        if new_versions := self._new(changed_libraries(manifest.versions)):
            versions = ", ".join(f"{name} {old} (here {new})" for name, old, new in new_versions)
            yield (
                f"Reused stages were computed with {versions}. Keys do not contain versions of"
                " libraries. To recompute all stages with this version, pass --recompute."
            )

    def summary(self) -> Iterator[str]:
        """Yield which files and variables the stages read although no key contains them."""
        if self._undeclared:
            names = sorted(self._undeclared)
            yield (
                f"Custom code read files that are neither code nor declared: {_list(names)}. Stages"
                " are reused even if these change. Add to the experiment:"
                f" `{self._files(names)}`"
            )
        sources = {path for keys in self.arms for path in keys.code.facts if _is_custom(path)}
        reads = {path.name: environment_reads(path.read_bytes()) for path in sorted(sources)}
        texts = [f"{file} reads {_list(map(str, reads[file]))}" for file in reads if reads[file]]
        if texts:
            yield (
                f"Custom code reads environment variables: {'; '.join(texts)}. Stages are reused"
                " even if these change. Replace them by parameters."
            )

    def _new(self, items: Iterable[_Item]) -> list[_Item]:
        """Return the items that were not reported before."""
        new = [each for each in items if each not in self._reported]
        self._reported.update(new)
        return new

    def _files(self, names: Iterable[str]) -> str:
        """Return the line of an experiment file that declares these files too."""
        declared = [each for keys in self.arms for each in keys.hyper_params.files]
        patterns = list(dict.fromkeys([*declared, *_patterns(names)]))
        text = yaml.safe_dump(patterns, default_flow_style=True, width=sys.maxsize)
        return f"files: {text.strip()}"


def unseen_inputs(experiment: ResolvedExperiment, stored: Iterable[str]) -> Iterator[str]:
    """Return the warnings about an experiment's stored stages, given by key."""
    unseen = UnseenInputs(experiment.store, experiment.keys)
    for key in dict.fromkeys(stored):
        manifest = experiment.store.peek(key)
        if manifest is not None:
            yield from unseen.of_stage(manifest, is_reused=True)
    yield from unseen.summary()


def _is_custom(path: Path) -> bool:
    """Return whether a source is the user's."""
    folders = (ROOT / name for name in PROJECT_PACKAGES)
    return not is_library(path) and not any(map(path.is_relative_to, folders))


def _patterns(names: Iterable[str]) -> Iterator[str]:
    """Iterate over patterns that match files: one for all with a suffix in a folder."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        groups.setdefault((str(path.parent), path.suffix), []).append(name)
    for (folder, suffix), members in groups.items():
        if len(members) == 1 or not suffix:
            yield from map(glob.escape, members)
        else:
            yield str(PurePosixPath(glob.escape(folder), f"*{glob.escape(suffix)}"))


def _list(texts: Iterable[str]) -> str:
    """Join texts, the first ones if there are many."""
    names = list(texts)
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class EnvironmentRead:
    """An expression that reads a variable, or all of them: then ``name`` is empty."""

    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name or 'os.environ'} (line {self.line})"


def environment_reads(source: bytes) -> list[EnvironmentRead]:
    """Return the reads of environment variables in a source, except those of secrets, by line.

    Assignments, and calls whose result is not used, such as ``os.environ.setdefault``, only write.
    """
    tree = parse_python(source)
    modules, names = _imports(tree)
    parents = {inner: node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)}
    reads = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and _is_environment(node, modules, names):
            reads += [EnvironmentRead(each, node.lineno) for each in _variable(node, parents)]
    reads = [each for each in reads if not _SECRET.search(each.name)]
    return sorted(set(reads), key=lambda each: (each.line, each.name))


def _imports(tree: ast.Module) -> tuple[set[str], dict[str, str]]:
    """Return the names of the module ``os``, and of all objects imported from it."""
    modules: set[str] = set()
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name == "os" or (each.asname is None and each.name.startswith("os.")):
                    modules.add(each.asname or "os")
        elif isinstance(node, ast.ImportFrom) and node.module == "os" and not node.level:
            names |= {each.asname or each.name: each.name for each in node.names}
    return modules, names


def _is_environment(
    node: ast.Name | ast.Attribute, modules: set[str], names: dict[str, str]
) -> bool:
    if isinstance(node, ast.Name):
        return names.get(node.id) in _READERS
    is_of_os = isinstance(node.value, ast.Name) and node.value.id in modules
    return is_of_os and node.attr in _READERS


def _variable(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[str]:
    """Yield the name of the variable that is read by means of a node, if it reads any."""
    parent = parents.get(node)
    if isinstance(parent, ast.Attribute):  # a method of the mapping
        node, parent = parent, parents.get(parent)
    if isinstance(parent, ast.Call) and parent.func is node:
        if not isinstance(parents.get(parent), ast.Expr):
            yield _text(parent.args[0]) if parent.args else ""
    elif isinstance(parent, ast.Subscript) and parent.value is node:
        if isinstance(parent.ctx, ast.Load):
            yield _text(parent.slice)
    elif isinstance(parent, ast.Compare):
        yield _text(parent.left)
    elif not isinstance(parent, ast.AugAssign):
        yield ""


def _text(node: ast.AST) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""
