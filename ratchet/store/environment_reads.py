"""Environment variables that a Python source reads, found in its syntax."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.syntax import parse_python

_READERS = ("environ", "environb", "getenv", "getenvb")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of variables that must not become parameters, which are recorded."""


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
    """Return the names of the module ``os``, and of what is imported from it."""
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
