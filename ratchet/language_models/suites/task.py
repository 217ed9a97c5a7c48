"""``SuiteTask``: a task of ``inspect-ai`` by file or by package, and what its code is."""

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
        The file it is in; None for one of an installed package.
    name
        Its function's, or ``package/task``.
    """

    file: Path | None
    name: str

    @classmethod
    def find(cls, task: str, base_dir: Path | None, arguments: Collection[str] = ()) -> SuiteTask:
        """Find ``path/to/file.py@function``, or take ``package/task`` as it is.

        Raises
        ------
        ParameterError, UnknownNameError
            If there is no such file, no such function in it, or it does not take the arguments:
            ``inspect-ai`` would leave them out.
        """
        place, _, function = task.rpartition("@")
        if not place:
            return cls(None, task)
        file = file_at(place, base_dir)
        if not file.is_file():
            raise ParameterError(f"evaluation.suites: task {task!r}: there is no file {file}.")
        try:
            tree = parse_python(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            raise ParameterError(f"evaluation.suites: {file} is no Python: {error}.") from error
        named = {one.name: one.args for one in tree.body if isinstance(one, ast.FunctionDef)}
        if function not in named:
            raise UnknownNameError(
                f"evaluation.suites: no function {function!r} in {file}.{nearest(function, named)}"
            )
        _check_arguments(f"{file}@{function}", named[function], arguments)
        return cls(file, function)

    @property
    def package(self) -> str | None:
        """The package that it is installed with."""
        return self.name.partition("/")[0] if self.file is None else None

    @property
    def reference(self) -> str:
        """What ``inspect-ai`` calls it."""
        return self.name if self.file is None else f"{self.file}@{self.name}"

    def digest(self, files: tuple[str, ...], base_dir: Path | None) -> str:
        """Return a digest of its code, with what it imports from beside it, and of its files.

        Raises
        ------
        ParameterError
            If one of them is not there.
        """
        code = "" if self.file is None else code_fingerprint(extra_roots=(self.file,)).digest
        digest = hashlib.sha256(code.encode())
        for given in files:
            for file in _files_at(given, base_dir):
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"\0{file.name}\0{content}".encode())
        return digest.hexdigest()


def _check_arguments(task: str, takes: ast.arguments, given: Collection[str]) -> None:
    names = [each.arg for each in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)]
    for name in given:
        if name not in names and takes.kwarg is None:
            raise ParameterError(
                f"evaluation.suites: arguments: {task} takes no {name!r}.{nearest(name, names)}"
            )


def _files_at(given: str, base_dir: Path | None) -> list[Path]:
    """Return a file, or all of a folder."""
    place = file_at(given, base_dir)
    if not place.exists():
        raise ParameterError(f"evaluation.suites: files: there is no {place}.")
    return [place] if place.is_file() else sorted(f for f in place.rglob("*") if f.is_file())
