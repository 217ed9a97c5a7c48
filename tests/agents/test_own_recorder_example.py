"""A custom recorder compared with its network; the guide's code."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path

import pytest
import torch

from ratchet.agents import tapes
from ratchet.agents.tapes import enable_fast_path, only_plain_operations, record_of

ROOT = Path(__file__).parents[2]
EXAMPLE, GUIDE = ROOT / "examples/own_recorder.py", ROOT / "docs/guides/networks.md"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("own_recorder", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def network(example):
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), example.ResidualBlock(4, 5))
    enable_fast_path(made)
    return made


def derivatives(network, x):
    """Values, gradients, and gradients of the gradients' squares."""
    inputs = [x, *network.parameters()]
    out = network(x)
    once = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    return [out, *once, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)]


def test_the_fast_path_computes_what_the_plain_one_does(example, network, monkeypatch):
    called = []

    def counted(block, x):
        called.append(block)
        return example.record_residual_block(block, x)

    known = tapes._RECORDERS[example.ResidualBlock]
    monkeypatch.setitem(tapes._RECORDERS, example.ResidualBlock, known._replace(recorder=counted))
    x = torch.randn(6, 3, requires_grad=True)
    found = derivatives(network, x)
    assert called == [network[1]]
    with only_plain_operations():
        expected = derivatives(network, x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_copy_computes_with_its_own_weights(network):
    other = copy.deepcopy(network)
    torch.nn.init.zeros_(other[1].outer.weight)
    torch.nn.init.zeros_(other[1].outer.bias)
    x = torch.randn(6, 3)
    assert torch.equal(other(x), other[0](x))
    assert not torch.equal(network(x), network[0](x))


def test_a_subclass_takes_the_plain_path(example):
    own = type("OwnBlock", (example.ResidualBlock,), {"forward": lambda self, x: -x})(4, 5)
    x = torch.randn(2, 4)
    enable_fast_path(own)
    assert record_of(own, x) is None
    assert torch.equal(own(x), -x)


def test_the_guide_shows_the_example():
    (shown,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert shown in EXAMPLE.read_text()
