"""Hand-written reverse-mode differentiation: coarse operations on a tape, one node for autograd.

Autograd records every operation on every tensor, which for small networks costs as much as the
arithmetic. Here an operation as large as a stack of layers adds one step to a :class:`Tape`, and
autograd sees the whole tape as one operation. Beside each there is the network's plain ``forward``;
:mod:`ratchet.agents.tapes.recorders` says which is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

BackwardStep = Callable[..., None]


class Var:
    """A value on a tape and, on the way back, the gradient with respect to it.

    ``needs_grad`` is false for constants; operations may spare themselves the gradient then.
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
    """Operations in order, each with how to go back through it; kept only if anybody will."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self._leaves: dict[int, tuple[Tensor, Var]] = {}
        self._steps: list[tuple[tuple[Var, ...], BackwardStep]] = []

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that gradients are computed of."""
        return [tensor for tensor, _ in self._leaves.values()]

    def leaf(self, tensor: Tensor) -> Var:
        """Return the variable of a parameter (or another input that gradients are wanted of)."""
        known = self._leaves.get(id(tensor))
        if known is None:
            var = Var(tensor, needs_grad=tensor.requires_grad)
            known = self._leaves[id(tensor)] = (tensor, var)
        return known[1]

    def record(self, back: BackwardStep, *outputs: Var) -> None:
        """Keep a step that has made ``outputs``.

        ``back`` is called with the gradients of ``outputs`` (None for one that nobody used, if
        there are several) and adds to those of the operation's inputs. It changes nothing it has
        kept, so that one can go back twice.
        """
        if self.keeps:
            self._steps.append((outputs, back))

    def go_back(self) -> list[Tensor | None]:
        """Go back from gradients put into variables; return those of :attr:`leaves`."""
        for outputs, back in reversed(self._steps):
            grads = [output.pop_grad() for output in outputs]
            if any(grad is not None for grad in grads):
                back(*grads)
        return [var.pop_grad() for _, var in self._leaves.values()]


def run_recorded(
    record: Callable[[Tape], Sequence[Var]], plain: Callable[[], Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """Run operations on a tape, and let autograd see them as one.

    ``plain`` computes the same with ordinary operations: for gradients that are to be
    differentiated again.
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
    """Run operations on a tape and put gradients into what they were made of, without autograd.

    The gradients are those that the sum of the ``wanted`` outputs, scalars, would put by
    ``backward()`` into leaves that have none. All that ``record`` calls leaves must be parameters
    or other leaves of autograd's graph. All outputs come back, detached.
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
            # whoever scales a gradient in place must not scale another's as well
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
