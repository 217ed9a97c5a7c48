"""Perceptrons and transformers with changed layers compute with these, not with plain weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from ratchet.agents.networks.layers import Initializer, Mlp
from ratchet.fast.dispatch import only_plain_operations
from ratchet.scenarios.graph_isomorphism.graph_networks import (
    TransformerShape,
    TransformerStack,
    attention_mask,
)


class Doubled(nn.Linear):
    """A user's layer, which computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def _as_class(layer):
    layer.__class__ = Doubled


def _custom_forward(layer):
    layer.forward = lambda x: 2 * nn.functional.linear(x, layer.weight, layer.bias)


CHANGES = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
    "earlier spectral_norm": lambda layer: spectral_norm(layer).eval(),
    "forward hook": lambda layer: layer.register_forward_hook(lambda m, x, out: 3 * out),
    "forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda m, x: (x[0] / 2,)),
    "backward hook": lambda layer: layer.register_full_backward_hook(
        lambda m, of_x, of_out: tuple(None if g is None else 2 * g for g in of_x)
    ),
    "hook of a parameter": lambda layer: layer.weight.register_hook(lambda grad: 5 * grad),
    "subclass": _as_class,
    "custom forward": _custom_forward,
}


def gradients(total, network):
    """Gradients of all parameters, as ``backward()`` puts them, hooks of them included."""
    network.zero_grad(set_to_none=True)
    total.backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    assert all(grad is not None for grad in found.values()), found
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["qkv_weight", "mlp_in_weight"])
@pytest.mark.parametrize("change", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrized_transformer_computes_with_its_weights_in_their_places(change, name):
    shape = TransformerShape(d_model=8, d_mlp=16, num_heads=2, num_layers=2)
    init = Initializer(torch.Generator().manual_seed(0))
    plain = TransformerStack(shape, activation_name="tanh", dropout=0.0, init=init)
    tokens = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(1))
    mask = attention_mask(torch.ones(3, 2, 5, dtype=torch.bool))
    stack = copy.deepcopy(plain)
    change(stack, name).eval()
    with torch.no_grad():
        getattr(plain, name).copy_(getattr(stack, name))
        assert torch.allclose(stack(tokens, mask), plain(tokens, mask), atol=1e-5)
    found = gradients(stack(tokens, mask).square().sum(), stack)
    with only_plain_operations():
        expected = gradients(stack(tokens, mask).square().sum(), stack)
    assert_same(found, expected)
    by_plain = gradients(plain(tokens, mask).square().sum(), plain)
    assert_same({"out_bias": found["out_bias"]}, {"out_bias": by_plain["out_bias"]})


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_of_a_plain_perceptron_is_not_passed_over(change):
    mlp = Mlp([4, 5, 2], "tanh", Initializer(torch.Generator().manual_seed(0)))
    CHANGES[change](mlp.layers[1])
    x = torch.randn(6, 4)
    expected = mlp.layers[1](torch.tanh(mlp.layers[0](x)))
    torch.testing.assert_close(mlp(x), expected)
    judged = gradients(expected.square().sum(), mlp)
    assert_same(gradients(mlp(x).square().sum(), mlp), judged)
