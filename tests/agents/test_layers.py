"""Layers against torch's: values, gradients, gradients of gradients."""

from __future__ import annotations

import pytest
import torch

from ratchet.agents.networks import layers
from ratchet.agents.networks.layers import Initializer, Mlp


def derivatives(function, inputs):
    """Outputs, gradients, and gradients of the gradients' squares."""
    out = function()
    total = (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum()
    first = torch.autograd.grad(total, inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs, allow_unused=True)
    return [out, *first, *[g for g in second if g is not None]]


@pytest.mark.parametrize("large", [0, 2**30])
@pytest.mark.parametrize("last_bias", [True, False])
@pytest.mark.parametrize("sizes", [[4, 6, 3], [4, 5, 6, 3], [4, 3]])
def test_an_mlp_has_tanh_between_its_layers(sizes, last_bias, large, monkeypatch):
    monkeypatch.setattr(layers, "_LARGE", large)
    init = Initializer(torch.Generator().manual_seed(0), orthogonal=False)
    mlp = Mlp(sizes, "tanh", init, last_bias=last_bias)
    x = torch.randn(7, 2, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def plain():
        out = x
        for index, layer in enumerate(mlp.layers):
            out = layer(out.tanh() if index else out)
        return out

    inputs = [x, *mlp.parameters()]
    pairs = zip(derivatives(lambda: mlp(x), inputs), derivatives(plain, inputs), strict=True)
    for one, another in pairs:
        torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-5)
