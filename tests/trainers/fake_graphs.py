"""CUDA graphs of the emulated device: operations recorded once and repeated on the same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import emulated_device
import torch
from emulated_device import EmulatedTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from trainers.tensordict.optimization import captured

replays = 0


class FakeGraph:
    """Repeats recorded operations; their arguments that are no tensors stay what they were."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        global replays
        replays += 1
        for func, args, kwargs, out in self.operations:
            again = emulated_device.run(func, args, kwargs)
            for old, new in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, EmulatedTensor) and old is not new:
                    old.inner.copy_(new.inner)


class _Recording(TorchDispatchMode):
    """Records operations, and restores what they wrote: a capture executes nothing."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self.graph = graph
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if emulated_device._is_waited_for(func, args, kwargs):
            raise RuntimeError(f"{func}: not permitted when a stream is capturing")
        returned = [one.alias_info for one in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returned)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                tensors = [one for one in tree_flatten(value)[0] if one is not None]
                self.before += [(one.inner, one.inner.clone()) for one in tensors]
        out = emulated_device.run(func, args, kwargs)
        if not is_view:
            self.graph.operations.append((func, args, kwargs, out))
        return out


@contextmanager
def _graph(graph: FakeGraph, *unused: object, **others: object) -> Iterator[None]:
    with _Recording(graph) as recording:
        yield
    for tensor, value in reversed(recording.before):
        tensor.copy_(value)


def install() -> None:
    """Let updates on the emulated device be captured."""
    captured.DEVICE_TYPE = emulated_device.NAME
    EmulatedTensor.data_ptr = lambda self: self.inner.data_ptr()
    torch.cuda.CUDAGraph = FakeGraph
    torch.cuda.graph = _graph
    torch.cuda.Stream = object
    torch.cuda.device = lambda device: nullcontext()
