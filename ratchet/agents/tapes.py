"""Fast path of small networks: hand-written reverse-mode differentiation on a tape.

Autograd records every operation on every tensor, which for small networks costs as much as the
arithmetic. Here an operation of the size of a stack of layers adds one step to a :class:`Tape`, and
autograd sees the complete tape as one operation. Each network also has a plain ``forward`` and
contains no tape code: a *recorder*, registered for exactly its class, computes the same outputs on
a tape. Networks use their ``forward`` for everything that a tape does not support: other devices,
mixed precision, functional transforms, forward-mode differentiation, and layers that are
subclassed, replaced, parametrized or have hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ratchet.agents.networks.layers import is_unchanged_within

_plain_only = False

BackwardStep = Callable[..., None]
_RECORDERS: dict[type[nn.Module], _Registered] = {}


@contextmanager
def only_plain_operations() -> Iterator[None]:
    """Disable tapes within a context, for comparisons or for debugging."""
    global _plain_only
    before, _plain_only = _plain_only, True
    try:
        yield
    finally:
        _plain_only = before


def may_record(tensor: Tensor) -> bool:
    """Return whether a tape currently supports operations on a tensor.

    False on other devices than the CPU, in mixed precision, and inside ``torch.func`` transforms or
    forward-mode differentiation.
    """
    if _plain_only or tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    # torch has no public function for either
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not transformed and forward_ad._current_level < 0


class Var:
    """A value on a tape and, in the backward pass, the gradient with respect to it.

    ``needs_grad`` is false for constants; operations may skip the gradient then.
    """

    __slots__ = ("grad", "needs_grad", "value")

    def __init__(self, value: Tensor, *, needs_grad: bool = True) -> None:
        self.value = value
        self.needs_grad = needs_grad
        self.grad: Tensor | None = None

    def add_grad(self, grad: Tensor) -> None:
        """Add to the gradient; ``grad`` is not changed."""
        self.grad = grad if self.grad is None else self.grad + grad

    def pop_grad(self) -> Tensor | None:
        """Return the gradient and forget it."""
        grad, self.grad = self.grad, None
        return grad


class Tape:
    """Operations in order, each with its backward step; stored only if gradients are required."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self._leaves: dict[int, tuple[Tensor, Var]] = {}
        self._steps: list[tuple[tuple[Var, ...], BackwardStep]] = []

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors with respect to which gradients are computed."""
        return [tensor for tensor, _ in self._leaves.values()]

    def leaf(self, tensor: Tensor) -> Var:
        """Return the variable of a parameter (or another input that requires gradients)."""
        known = self._leaves.get(id(tensor))
        if known is None:
            var = Var(tensor, needs_grad=tensor.requires_grad)
            known = self._leaves[id(tensor)] = (tensor, var)
        return known[1]

    def record(self, back: BackwardStep, *outputs: Var) -> None:
        """Record a step that computed ``outputs``.

        ``back`` is called with the gradients of ``outputs`` (None for an unused one, if there are
        several) and adds to those of the operation's inputs. It must not change its stored values,
        so that it can run twice.
        """
        if self.keeps:
            self._steps.append((outputs, back))

    def go_back(self) -> list[Tensor | None]:
        """Propagate gradients back from variables; return those of :attr:`leaves`."""
        for outputs, back in reversed(self._steps):
            grads = [output.pop_grad() for output in outputs]
            if any(grad is not None for grad in grads):
                back(*grads)
        return [var.pop_grad() for _, var in self._leaves.values()]


def run_recorded(
    record: Callable[[Tape], Sequence[Var]], plain: Callable[[], Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """Run operations on a tape as a single autograd operation.

    ``plain`` computes the same with ordinary operations: for gradients that are differentiated
    again.
    """
    keeps = torch.is_grad_enabled()
    with torch.no_grad():
        tape = Tape(keeps=keeps)
        outputs = record(tape)
    if not keeps:
        return tuple(output.value for output in outputs)
    return cast(
        tuple[Tensor, ...],
        _Recorded.apply(tape, outputs, plain, *tape.leaves),  # type: ignore[no-untyped-call]
    )


def put_gradients(record: Callable[[Tape], Sequence[Var]], wanted: Sequence[bool]) -> list[Tensor]:
    """Run operations on a tape and add gradients to its leaves, without autograd.

    The gradients are those of ``backward()`` of the sum of the ``wanted`` outputs, scalars, for
    leaves without gradients. Leaves of ``record`` must be parameters or other leaves of autograd's
    graph. Returns all outputs, detached.
    """
    with torch.no_grad():
        tape = Tape(keeps=True)
        outputs = record(tape)
        for output, is_wanted in zip(outputs, wanted, strict=True):
            if is_wanted:
                output.add_grad(torch.ones_like(output.value))
        grads = tape.go_back()
    known: set[int] = set()
    for leaf, grad in zip(tape.leaves, grads, strict=True):
        if grad is not None and leaf.requires_grad:
            assert leaf.is_leaf
            place = grad.data_ptr()
            # scaling one gradient in place must not scale another
            leaf.grad = grad if grad.is_contiguous() and place not in known else grad.clone()
            known.add(place)
    return [output.value for output in outputs]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        tape: Tape,
        outputs: Sequence[Var],
        plain: Callable[[], Sequence[Tensor]],
        *leaves: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.tape, ctx.outputs, ctx.plain = tape, outputs, plain
        ctx.save_for_backward(*leaves)  # notices leaves that change before the way back
        ctx.set_materialize_grads(False)
        # Without detach, outputs would hold the context, and the context the outputs.
        return tuple(output.value.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        leaves = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, None, *_differentiable_gradients(ctx.plain, leaves, grads)
        for output, grad in zip(ctx.outputs, grads, strict=True):
            output.grad = grad
        with torch.no_grad():
            return None, None, None, *ctx.tape.go_back()


def _differentiable_gradients(
    plain: Callable[[], Sequence[Tensor]], leaves: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Compute the leaves' gradients by the plain version, so that they can be differentiated."""
    with torch.enable_grad():
        outputs = plain()
    given = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(
        torch.autograd.grad(
            [out for out, _ in given],
            wanted,
            [grad for _, grad in given],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


Record = Callable[[Tape], Sequence[Var]]
"""Computes on a tape; returns the output variables."""
Recorder = Callable[..., Record | None]
"""Given a network and its inputs, returns a function that computes its outputs; None for the plain
path.
"""

Made = TypeVar("Made", bound=Recorder)


class _Registered(NamedTuple):
    recorder: Recorder
    parts: frozenset[type[nn.Module]]


def register_recorder(
    network: type[nn.Module], parts: Collection[type[nn.Module]] = ()
) -> Callable[[Made], Made]:
    """Return a decorator that registers a recorder for a class of networks.

    The recorder is called with the network and the network's arguments. It checks that it supports
    the network's current state (its activation function, its training mode). ``parts`` are the
    classes of modules within the network whose weights it reads; a network with any other module
    uses its ``forward``.
    """

    def register(recorder: Made) -> Made:
        _RECORDERS[network] = _Registered(recorder, frozenset(parts))
        return recorder

    return register


def record_of(network: nn.Module, *inputs: object) -> Record | None:
    """Return a function that computes a network's outputs on a tape; None for the plain path."""
    known = _RECORDERS.get(type(network))
    if known is None or not all(may_record(x) for x in inputs if isinstance(x, Tensor)):
        return None
    if not is_unchanged_within(network, known.parts):
        return None
    return known.recorder(network, *inputs)


def enable_fast_path(network: nn.Module) -> None:
    """Let calls of networks within a module use their recorders, if any."""
    for part in network.modules():
        if type(part) in _RECORDERS:
            part.forward = partial(_forward, part)


def _forward(network: nn.Module, *inputs: object) -> Tensor | tuple[Tensor, ...]:
    """Compute a network's outputs: on a tape if that may be."""

    def plain() -> Tensor | tuple[Tensor, ...]:
        made: Tensor | tuple[Tensor, ...] = type(network).forward(network, *inputs)
        return made

    record = record_of(network, *inputs)
    if record is None:
        return plain()
    outputs = run_recorded(record, lambda: _as_tuple(plain()))
    return outputs[0] if len(outputs) == 1 else outputs


def _as_tuple(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (made,) if isinstance(made, Tensor) else made
