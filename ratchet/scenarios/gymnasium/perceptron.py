"""Perceptrons on the same input, with linear heads, as one operation with its own derivative.

Small networks on a CPU spend their time in many tiny operations; see :mod:`ratchet.agents.fused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.fused import differentiable_gradients, may_fuse
from ratchet.agents.layers import activation

_FUSED = ("tanh", "relu")
_LARGE = 4096


@dataclass(frozen=True)
class Plan:
    """How perceptrons are made up; their weights come one after the other.

    Attributes
    ----------
    towers
        For each perceptron the number of its hidden layers and of its heads. A layer is a weight
        [d_out, d_in] and a bias [d_out]; first come a perceptron's hidden layers, then its heads.
    activation_name
        What follows hidden layers; see :func:`ratchet.agents.layers.activation`.
    """

    towers: tuple[tuple[int, int], ...]
    activation_name: str

    def divide(self, weights: Sequence[Tensor]) -> Iterator[tuple[list[_Layer], list[_Layer]]]:
        """Give each perceptron's hidden layers and heads."""
        pairs = list(zip(weights[::2], weights[1::2], strict=True))
        start = 0
        for num_hidden, num_heads in self.towers:
            middle, stop = start + num_hidden, start + num_hidden + num_heads
            yield pairs[start:middle], pairs[middle:stop]
            start = stop


_Layer = tuple[Tensor, Tensor]


def perceptrons(x: Tensor, plan: Plan, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply perceptrons to x f32 [B, d]: what each of their heads gives, f32 [B, d_out]."""
    if plan.activation_name not in _FUSED or not may_fuse(x):
        return _plain(plan, x, *weights)
    if not torch.is_grad_enabled():
        return _forward(plan, x, weights)[0]
    return cast(tuple[Tensor, ...], _Perceptrons.apply(x, plan, *weights))  # type: ignore[no-untyped-call]


def _plain(plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    act = activation(plan.activation_name)
    outputs: list[Tensor] = []
    for layers, heads in plan.divide(weights):
        hidden = x
        for weight, bias in layers:
            hidden = act(F.linear(hidden, weight, bias))
        outputs += [F.linear(hidden, weight, bias) for weight, bias in heads]
    return tuple(outputs)


def _plain_packed(plan: Plan, x: Tensor, *weights: Tensor) -> Tensor:
    return torch.cat(_plain(plan, x, *weights), -1)


def _forward(
    plan: Plan, x: Tensor, weights: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Give what heads and hidden layers give."""
    act_ = _tanh_ if plan.activation_name == "tanh" else torch.relu_
    outputs: list[Tensor] = []
    kept: list[Tensor] = []
    for layers, heads in plan.divide(weights):
        hidden = x
        for weight, bias in layers:
            hidden = act_(torch.addmm(bias, hidden, weight.t()))
            kept.append(hidden)
        outputs += [torch.addmm(bias, hidden, weight.t()) for weight, bias in heads]
    return tuple(outputs), kept


def _tanh_(x: Tensor) -> Tensor:
    """Compute tanh(x) = 2σ(2x) − 1 in place; torch's own is slower as soon as x is large."""
    if x.numel() < _LARGE:
        return x.tanh_()
    return x.add_(x).sigmoid_().mul_(2).sub_(1)


class _Perceptrons(torch.autograd.Function):
    """The same; keeps what hidden layers give."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- torch's context
        x: Tensor,
        plan: Plan,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs, kept = _forward(plan, x, weights)
        ctx.save_for_backward(x, *kept, *weights)
        ctx.plan = plan
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        plan: Plan = ctx.plan
        num_kept = sum(num_hidden for num_hidden, _ in plan.towers)
        x, *tensors = ctx.saved_tensors
        kept, weights = tensors[:num_kept], tensors[num_kept:]
        if torch.is_grad_enabled():
            plain = partial(_plain_packed, plan)
            found = differentiable_gradients(plain, (x, *weights), torch.cat(grads, -1))
            return (found[0], None, *found[1:])
        wants_x = ctx.needs_input_grad[0]
        of_x: Tensor | None = None
        of_weights: list[Tensor] = []
        grads_left, kept_left = list(grads), list(kept)
        for layers, heads in plan.divide(weights):
            own, grads_left = grads_left[: len(heads)], grads_left[len(heads) :]
            outputs, kept_left = kept_left[: len(layers)], kept_left[len(layers) :]
            before, found_here = _tower_backward(plan, x, layers, heads, outputs, own, wants_x)
            of_weights += found_here
            if before is not None:
                of_x = before if of_x is None else of_x + before
        return (of_x, None, *of_weights)


def _tower_backward(
    plan: Plan,
    x: Tensor,
    layers: list[_Layer],
    heads: list[_Layer],
    outputs: list[Tensor],
    grads: list[Tensor],
    wants_x: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """Go back through one perceptron: gradients of x, if wanted, and of its weights."""
    is_tanh = plan.activation_name == "tanh"
    last = outputs[-1] if outputs else x
    needed = bool(layers) or wants_x
    before: Tensor | None = None
    of_heads: list[Tensor] = []
    for (weight, _), grad in zip(heads, grads, strict=True):
        of_heads += [grad.t().mm(last), grad.sum(0)]
        if needed:
            before = grad.mm(weight) if before is None else torch.addmm(before, grad, weight)
    of_layers: list[Tensor] = []
    for index in reversed(range(len(layers))):
        assert before is not None
        output = outputs[index]
        inner = (
            torch.ops.aten.tanh_backward.default(before, output)
            if is_tanh
            else torch.ops.aten.threshold_backward.default(before, output, 0)
        )
        entering = outputs[index - 1] if index else x
        of_layers = [inner.t().mm(entering), inner.sum(0), *of_layers]
        before = inner.mm(layers[index][0]) if index or wants_x else None
    return before, [*of_layers, *of_heads]
