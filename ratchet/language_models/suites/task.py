"""``SuiteTask``: a task of ``inspect-ai`` by file or package, with a digest of its code."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.plugins import file_at
from ratchet.store.fingerprint import code_fingerprint
from ratchet.syntax import parse_python


@dataclass(frozen=True)
class SuiteTask:
    """A task that an experiment names.

    Attributes
    ----------
    file
        Its file; None for a task of an installed package.
    name
        The name of its function, or ``package/task``.
    """

    file: Path | None
    name: str

    @classmethod
    def find(cls, task: str, base_dir: Path | None, arguments: Collection[str] = ()) -> SuiteTask:
        """Find ``path/to/file.py@function``, or use ``package/task`` unchanged."""
        path, _, function = task.rpartition("@")
        if not path:
            return cls(None, task)
        file = file_at(path, base_dir)
        if not file.is_file():
            raise ParameterError(f"evaluation.suites: task {task!r}: file {file} does not exist.")
        try:
            tree = parse_python(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            raise ParameterError(
                f"evaluation.suites: {file} is not valid Python: {error}."
            ) from error
        named = {one.name: one.args for one in tree.body if isinstance(one, ast.FunctionDef)}
        if function not in named:
            raise UnknownNameError(
                f"evaluation.suites: no function {function!r} in {file}.{nearest(function, named)}"
            )
        _check_arguments(f"{file}@{function}", named[function], arguments)
        return cls(file, function)

    @property
    def package(self) -> str | None:
        """The package that contains it."""
        return self.name.partition("/")[0] if self.file is None else None

    @property
    def reference(self) -> str:
        """Its name in ``inspect-ai``."""
        return self.name if self.file is None else f"{self.file}@{self.name}"

    def digest(self, files: tuple[str, ...], base_dir: Path | None) -> str:
        """Return a digest of its code, of the neighbouring modules it imports, and of its files."""
        code = "" if self.file is None else code_fingerprint(extra_roots=(self.file,)).digest
        digest = hashlib.sha256(code.encode())
        for file_or_folder in files:
            path = file_at(file_or_folder, base_dir)
            if not path.exists():
                raise ParameterError(f"evaluation.suites: files: {path} does not exist.")
            paths = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
            for file in paths:
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"\0{file.name}\0{content}".encode())
        return digest.hexdigest()


def _check_arguments(task: str, takes: ast.arguments, argument_names: Collection[str]) -> None:
    names = [each.arg for each in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)]
    for name in argument_names:
        if name not in names and takes.kwarg is None:
            raise ParameterError(
                f"evaluation.suites: {task} has no argument {name!r}.{nearest(name, names)}"
            )
