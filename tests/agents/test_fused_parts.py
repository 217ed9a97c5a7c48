"""Small fused operations against their plain versions."""

from __future__ import annotations

import pytest
import torch

from ratchet.agents import scores
from ratchet.agents.fused import only_plain_operations
from ratchet.agents.layers import Initializer, Mlp


def first_and_second(function, inputs):
    """Outputs, gradients, and gradients of the gradients' squares."""
    outputs = function()
    total = sum((out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum() for out in outputs)
    plain_first = torch.autograd.grad(total, inputs, retain_graph=True)
    first = torch.autograd.grad(total, inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs, allow_unused=True)
    return [*outputs, *plain_first, *[g for g in second if g is not None]]


def log_probs_of_something():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 3, 5, generator=generator, requires_grad=True)
    allowed = torch.rand(20, 3, 5, generator=generator) < 0.6
    allowed[..., 1] = True
    weights = (torch.rand(20, 3, generator=generator) < 0.7).float()
    actions = torch.ones(20, 3, dtype=torch.int64)
    return [logits], lambda: scores.log_prob_and_entropy(logits, allowed, weights, actions)


def an_mlp():
    mlp = Mlp([4, 6, 3], "tanh", Initializer(torch.Generator().manual_seed(0), orthogonal=False))
    x = torch.randn(7, 2, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    return [x, *mlp.parameters()], lambda: [mlp(x)]


@pytest.mark.parametrize("make", [log_probs_of_something, an_mlp])
def test_fused_equals_plain_up_to_second_derivatives(make):
    inputs, function = make()
    fused = first_and_second(function, inputs)
    with only_plain_operations():
        plain = first_and_second(function, inputs)
    assert len(fused) == len(plain)
    for one, another in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-5)
