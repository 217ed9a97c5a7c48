"""Import tensordict and TorchRL without torch's compiler, which takes longer than they do.

When they are imported, they mark some of their functions for ``torch.compile``, and the marking
imports the compiler: a second and a half, and 70 MB, in every process. Functions that must not be
compiled import it when they are first called. Users can still compile their own functions; only
``allow_in_graph`` is missing, so that tracing stops at ``vmap`` over tensordicts.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])

_MODULES = ("tensordict", "torchrl.data", "torchrl.modules")


def skip_compiler_import() -> None:
    """Let the first import of these modules mark nothing; later calls have no effect."""
    awaited = {finder.name for finder in sys.meta_path if isinstance(finder, _Finder)}
    for name in _MODULES:
        if name not in sys.modules and name not in awaited:
            sys.meta_path.insert(0, _Finder(name))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, once, and lets :class:`_Loader` load it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Runs a module while torch's marks do not import the compiler."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import torch.compiler
        from torch._compile import _disable_dynamo

        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        marks = {
            "allow_in_graph": lambda function: function,
            "assume_constant_result": _marked_constant,
            "disable": _disable_dynamo,
        }
        before = {name: getattr(torch.compiler, name) for name in marks}
        compiler = SimpleNamespace(**marks)
        vars(torch).setdefault("_dynamo", compiler)  # else torch imports it when it is named
        try:
            for name, mark in marks.items():
                setattr(torch.compiler, name, mark)
            self.loader.exec_module(module)
        finally:
            for name, mark in before.items():
                setattr(torch.compiler, name, mark)
            if vars(torch)["_dynamo"] is compiler:
                del vars(torch)["_dynamo"]


def _marked_constant(function: _Function) -> _Function:
    """Mark a function as the compiler itself does."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
