"""Import tensordict without torch's compiler, which takes longer than tensordict itself.

When it is imported, tensordict marks some of its functions for ``torch.compile``, and the marking
imports the compiler: a second and a half, and 70 MB, in every process. Nothing here is compiled.
Whoever compiles functions of their own still can; only these marks are missing, so that tracing
stops at ``vmap`` over tensordicts.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])
_MARKS = ("allow_in_graph", "assume_constant_result")


def leave_compiler_out() -> None:
    """Let the first import of tensordict mark nothing; does nothing if it is imported already."""
    if "tensordict" not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds tensordict, once, and lets :class:`_Loader` load it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensordict":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Runs a module while torch's marks do nothing."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import torch.compiler

        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        marks = {name: getattr(torch.compiler, name) for name in _MARKS}
        try:
            for name in marks:
                setattr(torch.compiler, name, _unmarked)
            self.loader.exec_module(module)
        finally:
            for name, mark in marks.items():
                setattr(torch.compiler, name, mark)


def _unmarked(function: _Function) -> _Function:
    return function
