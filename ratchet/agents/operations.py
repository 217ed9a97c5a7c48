"""Operations on tapes that bodies and heads of any scenario are made of.

Inputs are variables where gradients go back into them, tensors where they do not. Shape letters:
d features, h hidden features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.agents.tape import Tape, Var


def linear(tape: Tape, x: Var, weight: Tensor, bias: Tensor | None = None) -> Var:
    """Map [..., d_in] to [..., d_out], by one matrix product over all rows."""
    w = tape.leaf(weight)
    b = None if bias is None else tape.leaf(bias)
    shape, (d_out, d_in) = x.value.shape, weight.shape
    rows = x.value.reshape(-1, d_in)
    out = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())

    def back(grad: Tensor) -> None:
        grad = grad.reshape(-1, d_out)
        if b is not None:
            b.add_grad(grad.sum(0))
        w.add_grad(grad.t().mm(rows))
        if x.needs_grad:
            x.add_grad(grad.mm(weight).view(shape))

    result = Var(out.view(*shape[:-1], d_out))
    tape.record(back, result)
    return result


def tanh_mlp(tape: Tape, x: Var, layers: Sequence[tuple[Tensor, Tensor | None]]) -> Var:
    """Apply linear layers (weight, bias) with tanh between them to [..., d]."""
    leaves = [[None if t is None else tape.leaf(t) for t in layer] for layer in layers]
    shape = x.value.shape
    out = x.value.reshape(-1, shape[-1])
    kept = []
    for index, (weight, bias) in enumerate(layers):
        if index:
            out = out.add_(out).sigmoid_().mul_(2).sub_(1)  # tanh
        kept.append(out)
        out = out.mm(weight.t()) if bias is None else torch.addmm(bias, out, weight.t())

    def back(grad: Tensor) -> None:
        grad = grad.reshape(-1, grad.shape[-1])
        for index in reversed(range(len(layers))):
            weight, bias = leaves[index]
            assert weight is not None
            weight.add_grad(grad.t().mm(kept[index]))
            if bias is not None:
                bias.add_grad(grad.sum(0))
            if index:
                grad = torch.ops.aten.tanh_backward(grad.mm(weight.value), kept[index])
            elif x.needs_grad:
                x.add_grad(grad.mm(weight.value).view(shape))

    result = Var(out.view(*shape[:-1], out.shape[-1]))
    tape.record(back, result)
    return result


def layer_norm(tape: Tape, x: Var, scale: Tensor, shift: Tensor, epsilon: float) -> Var:
    """Normalise the last dimension of [..., d]."""
    scale_var, shift_var = tape.leaf(scale), tape.leaf(shift)
    size = [len(scale)]
    out, mean, rstd = torch.native_layer_norm(x.value, size, scale, shift, epsilon)

    def back(grad: Tensor) -> None:
        grads = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), x.value, size, mean, rstd, scale, shift, [True, True, True]
        )
        for var, found in zip((x, scale_var, shift_var), grads, strict=True):
            var.add_grad(found)

    result = Var(out)
    tape.record(back, result)
    return result


def batch_norm(tape: Tape, x: Var, scale: Tensor, shift: Tensor, epsilon: float) -> Var:
    """Normalise each feature of [b, d] over the rows; statistics are the batch's."""
    scale_var, shift_var = tape.leaf(scale), tape.leaf(shift)
    out, mean, rstd = torch.native_batch_norm(x.value, scale, shift, None, None, True, 0.0, epsilon)

    def back(grad: Tensor) -> None:
        grads = torch.ops.aten.native_batch_norm_backward(
            grad, x.value, scale, None, None, mean, rstd, True, epsilon, [True, True, True]
        )
        for var, found in zip((x, scale_var, shift_var), grads, strict=True):
            var.add_grad(found)

    result = Var(out)
    tape.record(back, result)
    return result


def concatenate(tape: Tape, parts: Sequence[Var | Tensor], dim: int) -> Var:
    """Lay variables and constants side by side along a dimension."""
    values = [part.value if isinstance(part, Var) else part for part in parts]

    def back(grad: Tensor) -> None:
        pieces = grad.split_with_sizes([value.shape[dim] for value in values], dim)
        for part, piece in zip(parts, pieces, strict=True):
            if isinstance(part, Var):
                part.add_grad(piece)

    result = Var(torch.cat(values, dim))
    tape.record(back, result)
    return result
