"""An emulated device: tensors that report to be on it, and refuse to mix with others.

Operations of an accelerator are executed on the CPU. Mixing devices raises as with CUDA, where
scalars may mix with any tensor and an index may be on the CPU. Registered for a complete process,
so that tests run it in a separate one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "emulated"
_aten = torch.ops.aten
_MAY_MIX = {
    _aten.copy_.default,
    _aten._to_copy.default,
    _aten._foreach_copy_.default,
}
_INDEXED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
}
"""The indexed tensor determines the device; indices may be on the CPU."""
_JOINS = {_aten.cat.default, _aten.stack.default}
"""Single numbers may not mix here either."""
_WAITED_FOR = {
    _aten._local_scalar_dense.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.masked_select.default,
    _aten.nonzero.default,
}
waits = 0
"""The number of synchronisations with the device and of copies between devices."""


def play_in_a_process(script: Path, *names: str) -> list[str]:
    """Run a script, which registers the device, with arguments; return its output."""
    places = [str(Path(__file__).parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, str(script), *names],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


class EmulatedTensor(torch.Tensor):
    """Wraps a CPU tensor, and reports to be on the device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> EmulatedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        global waits
        waits += 1
        return self.inner.tolist()

    def numpy(self, **unused: object) -> Any:
        raise TypeError(f"can't convert a tensor on {NAME} to NumPy: copy it to the CPU first")

    def __repr__(self) -> str:
        return f"Emulated({self.inner!r})"


def _is_elsewhere(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, EmulatedTensor)


def _check(func: Any, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError where tensors of both devices meet that may not."""
    if func in _MAY_MIX:
        return
    if func in _INDEXED:
        values, indices = [args[0], *args[2:3]], args[1]
        on_cpu = _is_elsewhere(args[0])
        if on_cpu and any(isinstance(index, EmulatedTensor) for index in indices):
            raise RuntimeError(f"{func}: indices on {NAME}, but the indexed tensor on the CPU")
        tensors = values
    else:
        tensors = tree_flatten((args, kwargs))[0]
    counts = func in _JOINS
    tensors = [one for one in tensors if isinstance(one, torch.Tensor) and (counts or one.dim())]
    if len({isinstance(one, EmulatedTensor) for one in tensors}) > 1:
        shapes = [(type(one).__name__, tuple(one.shape)) for one in tensors]
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, got {shapes}")


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) and value.type == NAME


def _is_waited_for(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation synchronises with the device, or copies between devices."""
    if func is _aten._to_copy.default:
        target = kwargs.get("device")
        return target is not None and _is_elsewhere(args[0]) == _is_device(torch.device(target))
    if func is _aten.copy_.default:
        return _is_elsewhere(args[0]) != _is_elsewhere(args[1])
    if func in _INDEXED:
        there = isinstance(args[0], EmulatedTensor)
        return there and any(getattr(index, "dtype", None) is torch.bool for index in args[1])
    return func in _WAITED_FOR and isinstance(args[0], EmulatedTensor)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Execute an operation on the wrapped tensors, and wrap its results."""
    global waits
    waits += _is_waited_for(func, args, kwargs)
    flat = tree_flatten((args, kwargs))[0]
    given = kwargs.get("device")
    if given is None:
        there = any(isinstance(one, EmulatedTensor) for one in flat)
    else:
        there = torch.device(given).type == NAME
    _check(func, args, kwargs)

    def unwrap(value: object) -> object:
        if isinstance(value, EmulatedTensor):
            return value.inner
        return torch.device("cpu") if _is_device(value) else value

    if func is _aten.is_pinned.default:
        return False
    out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
    mine = {id(one.inner): one for one in flat if isinstance(one, EmulatedTensor)}

    def wrap(value: object) -> object:
        if not isinstance(value, torch.Tensor) or not there:
            return value
        known = mine.get(id(value))
        return EmulatedTensor(value) if known is None else known

    if func is _aten._to_copy.default and there:
        return EmulatedTensor(out)
    return tree_map(wrap, out)


class OnDevice(TorchDispatchMode):
    """Creates tensors for the device on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


_TorchGenerator = torch.Generator


class _MadeOnTheCpu(type):
    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return _TorchGenerator("cpu" if torch.device(device).type == NAME else device)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _TorchGenerator)


class _Generator(metaclass=_MadeOnTheCpu):
    """Generators of the device are the CPU's."""


_KERNELS = torch.library.Library("aten", "IMPL")


def _register_empty() -> None:
    """Replace functions that bypass the Python dispatcher: lists that become tensors."""

    def empty_strided(size, stride, *, dtype=None, device=None, **unused):
        return EmulatedTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def copy_from(source, target, non_blocking=False):
        run(_aten.copy_.default, (target, source), {})
        return target

    _KERNELS.impl("empty_strided", empty_strided, "PrivateUse1")
    _KERNELS.impl("_copy_from", copy_from, "PrivateUse1")


class _Backend(_DummyBackendModule):
    def synchronize(self, device: object = None) -> None:
        """Do nothing: all operations are synchronous."""


def install() -> None:
    """Register the device, and have its generators be the CPU's."""
    _register_empty()
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Backend())
    torch.Generator = _Generator
    OnDevice().__enter__()
    threading.Thread.run = _on_device(threading.Thread.run)


def _on_device(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Let threads use the device, too: the mode is a thread's own."""

    def run_thread(thread: threading.Thread) -> None:
        with OnDevice():
            start(thread)

    return run_thread
