"""Perceptrons with linear heads as operations on a tape; see :mod:`ratchet.agents.tape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.agents.layers import activation
from ratchet.agents.tape import Tape, Var

Layer: TypeAlias = tuple[Tensor, Tensor]
"""Weight [d_out, d_in] and bias [d_out]."""

RECORDED_ACTIVATIONS = ("tanh", "relu")
_LARGE = 4096


def plain_perceptron(
    x: Tensor, layers: Sequence[Layer], heads: Sequence[Layer], activation_name: str
) -> list[Tensor]:
    """Apply layers with an activation function after each, then every head, to x f32 [B, d]."""
    act = activation(activation_name)
    for weight, bias in layers:
        x = act(F.linear(x, weight, bias))
    return [F.linear(x, weight, bias).to(heads[0][0].dtype) for weight, bias in heads]


def record_perceptron(
    tape: Tape, x: Tensor, layers: Sequence[Layer], heads: Sequence[Layer], activation_name: str
) -> list[Var]:
    """Do what :func:`plain_perceptron` does, for a constant x and a recorded activation."""
    is_tanh = activation_name == "tanh"
    hidden, kept = x, []
    for weight, bias in layers:
        hidden = torch.addmm(bias, hidden, weight.t())
        hidden = _tanh_(hidden) if is_tanh else hidden.relu_()
        kept.append(hidden)
    outputs = [Var(torch.addmm(bias, hidden, weight.t())) for weight, bias in heads]
    if not tape.keeps:
        return outputs
    leaves = [(tape.leaf(weight), tape.leaf(bias)) for weight, bias in (*layers, *heads)]

    def back(*grads: Tensor | None) -> None:
        of_hidden: Tensor | None = None
        for (weight, bias), grad in zip(leaves[len(layers) :], grads, strict=True):
            if grad is None:
                continue
            weight.add_grad(grad.t().mm(kept[-1] if kept else x))
            bias.add_grad(grad.sum(0))
            of_hidden = (
                grad.mm(weight.value)
                if of_hidden is None
                else torch.addmm(of_hidden, grad, weight.value)
            )
        for index in reversed(range(len(layers))):
            weight, bias = leaves[index]
            assert of_hidden is not None  # the tape goes back where there is a gradient
            inner = (
                torch.ops.aten.tanh_backward.default(of_hidden, kept[index])
                if is_tanh
                else torch.ops.aten.threshold_backward.default(of_hidden, kept[index], 0)
            )
            weight.add_grad(inner.t().mm(kept[index - 1] if index else x))
            bias.add_grad(inner.sum(0))
            if index:
                of_hidden = inner.mm(weight.value)

    tape.record(back, *outputs)
    return outputs


def _tanh_(x: Tensor) -> Tensor:
    """Compute tanh(x) = 2σ(2x) − 1 in place; torch's own is slower as soon as x is large."""
    if x.numel() < _LARGE:
        return x.tanh_()
    return x.add_(x).sigmoid_().mul_(2).sub_(1)
