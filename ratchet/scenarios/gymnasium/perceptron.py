"""A perceptron with several linear heads as one operation with a hand-written derivative.

Small networks on a CPU spend their time in many tiny operations; see :mod:`ratchet.agents.fused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.fused import differentiable_gradients, may_fuse
from ratchet.agents.layers import activation

Weights = Sequence[Tensor]
"""Weight and bias of each layer, one after the other."""

_FUSED = ("tanh", "relu")


def perceptron(
    x: Tensor, layers: Weights, heads: Weights, activation_name: str
) -> tuple[Tensor, ...]:
    """Apply layers with an activation function after each, then every head to what comes out.

    Parameters
    ----------
    x
        f32 [B, d].
    layers
        [d_out, d_in] and [d_out] of each.
    heads
        The same, of each head.
    activation_name
        See :func:`ratchet.agents.layers.activation`.

    Returns
    -------
    tuple of Tensor
        f32 [B, d_out] of each head.
    """
    if layers and activation_name in _FUSED and may_fuse(x):
        outputs = _Perceptron.apply(x, activation_name, len(layers), *layers, *heads)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, ...], outputs)
    return _plain(activation_name, len(layers), x, *layers, *heads)


def _plain(activation_name: str, num: int, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    act = activation(activation_name)
    for weight, bias in _pairs(weights[:num]):
        x = act(F.linear(x, weight, bias))
    return tuple(F.linear(x, weight, bias) for weight, bias in _pairs(weights[num:]))


def _pairs(weights: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(weights[::2], weights[1::2], strict=True))


def _plain_packed(activation_name: str, num: int, x: Tensor, *weights: Tensor) -> Tensor:
    return torch.cat(_plain(activation_name, num, x, *weights), -1)


class _Perceptron(torch.autograd.Function):
    """The same; keeps what each layer gives."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        x: Tensor,
        activation_name: str,
        num: int,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs = []
        hidden = x
        for weight, bias in _pairs(weights[:num]):
            hidden = torch.addmm(bias, hidden, weight.t())
            hidden = hidden.tanh_() if activation_name == "tanh" else hidden.relu_()
            outputs.append(hidden)
        ctx.save_for_backward(x, *outputs, *weights)
        ctx.activation_name, ctx.num = activation_name, num
        return tuple(
            torch.addmm(bias, hidden, weight.t()) for weight, bias in _pairs(weights[num:])
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        num_layers = ctx.num // 2
        x, *kept = ctx.saved_tensors
        outputs, weights = kept[:num_layers], kept[num_layers:]
        if torch.is_grad_enabled():
            plain = partial(_plain_packed, ctx.activation_name, ctx.num)
            found = differentiable_gradients(plain, (x, *weights), torch.cat(grads, -1))
            return (found[0], None, None, *found[1:])
        is_tanh = ctx.activation_name == "tanh"
        last, before = outputs[-1], None
        of_heads: list[Tensor | None] = []
        for (weight, _), grad in zip(_pairs(weights[ctx.num :]), grads, strict=True):
            of_heads += [grad.t().mm(last), grad.sum(0)]
            before = grad.mm(weight) if before is None else torch.addmm(before, grad, weight)
        assert before is not None  # there is a head
        of_layers: list[Tensor | None] = []
        for index in reversed(range(num_layers)):
            output, weight = outputs[index], weights[2 * index]
            before = (
                torch.ops.aten.tanh_backward(before, output)
                if is_tanh
                else torch.ops.aten.threshold_backward(before, output, 0)
            )
            entering = x if index == 0 else outputs[index - 1]
            of_layers = [before.t().mm(entering), before.sum(0), *of_layers]
            if index or ctx.needs_input_grad[0]:
                before = before.mm(weight)
        of_x = before if ctx.needs_input_grad[0] else None
        return (of_x, None, None, *of_layers, *of_heads)
