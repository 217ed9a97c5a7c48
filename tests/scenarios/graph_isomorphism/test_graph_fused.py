"""Fused stacks against their plain versions: values, gradients, and higher derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad

from ratchet.agents.layers import Initializer, fast_tanh
from ratchet.scenarios.graph_isomorphism import gin, transformer
from ratchet.scenarios.graph_isomorphism.gin import GinStack
from ratchet.scenarios.graph_isomorphism.transformer import (
    TransformerShape,
    TransformerStack,
    attention_mask,
)


def shaken(module):
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module


@pytest.fixture(params=["gin", "transformer"])
def stack(request):
    """(module, what differs from layer to layer as first input, the other input)."""
    init, generator = Initializer(torch.Generator().manual_seed(0)), torch.Generator()
    if request.param == "gin":
        module = GinStack(3, 8, 16, activation_name="tanh", init=init)
        adjacency = (torch.rand(6, 5, 5, generator=generator) < 0.5).float().triu(1)
        x = torch.randn(6, 5, 2, 8, generator=generator, requires_grad=True)
        return shaken(module), x, adjacency + adjacency.mT + torch.eye(5)
    shape = TransformerShape(d_model=8, d_mlp=16, num_heads=2, num_layers=2)
    module = TransformerStack(shape, activation_name="tanh", dropout=0.0, init=init)
    nodes = torch.ones(3, 2, 5, dtype=torch.bool)
    nodes[0, :, 3:] = False
    x = torch.randn(3, 12, 8, generator=generator, requires_grad=True)
    return shaken(module), x, attention_mask(nodes)


@pytest.fixture
def plain(monkeypatch):
    """A switch that turns fusing off."""

    def switch():
        for module in (gin, transformer):
            monkeypatch.setattr(module, "may_fuse", lambda tensor: False)

    return switch


def derivatives(module, x, other, *, second):
    """The output and the derivatives with respect to everything."""
    inputs = [x, *module.parameters()]
    out = module(x, other)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    first = torch.autograd.grad((out * weight).sum(), inputs, create_graph=second)
    if not second:
        return out, first
    return out, torch.autograd.grad(sum(g.square().sum() for g in first), inputs)


@pytest.mark.parametrize("second", [False, True])
def test_fused_equals_plain(stack, plain, second):
    module, x, other = stack
    out, found = derivatives(module, x, other, second=second)
    plain()
    expected_out, expected = derivatives(module, x, other, second=second)
    torch.testing.assert_close(out, expected_out, rtol=1e-4, atol=1e-5)
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-4)


def test_functional_transforms_and_forward_mode_fall_back_to_plain(stack):
    module, x, other = stack
    weights = dict(module.named_parameters())

    def loss(parameters):
        return functional_call(module, parameters, (x, other)).square().sum()

    found = grad(loss)(weights)
    expected = torch.autograd.grad(loss(weights), list(weights.values()))
    for one, another in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-3)
    tangents = {name: torch.ones_like(value) for name, value in weights.items()}
    _, slope = torch.func.jvp(loss, (weights,), (tangents,))
    torch.testing.assert_close(slope, sum(g.sum() for g in expected), rtol=1e-3, atol=1e-2)


def test_scores_far_beyond_the_cut_stay_finite(stack):
    module, x, other = stack
    out = module(x * 0 + 1e4 * x.detach(), other)
    assert out.isfinite().all()


def test_fast_tanh_is_tanh_with_its_derivatives():
    x = torch.linspace(-4, 4, 101, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(fast_tanh(x), torch.tanh(x))
    assert torch.autograd.gradcheck(fast_tanh, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fast_tanh, (x,))


def test_nodes_attend_to_pooled_tokens_and_the_other_graph_only():
    nodes = torch.tensor([[[True, True, False], [True, True, True]]])
    mask = attention_mask(nodes)[0].mT.bool()  # query, key
    assert torch.equal(mask[0], torch.tensor([1, 1, 1, 1, 0, 1, 1, 1], dtype=torch.bool))
    assert torch.equal(mask[2], torch.tensor([1, 1, 0, 0, 0, 1, 1, 1], dtype=torch.bool))
    assert torch.equal(mask[5], torch.tensor([1, 1, 1, 1, 0, 0, 0, 0], dtype=torch.bool))
