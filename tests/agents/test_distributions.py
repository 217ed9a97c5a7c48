"""Packed categorical factors against torch's own distribution."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical

from ratchet.agents.actions import FactorisedCategorical, scatter_columns


@pytest.fixture
def factors():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, 5, generator=generator, requires_grad=True)
    allowed = torch.rand(50, 3, 5, generator=generator) < 0.6
    allowed[..., 1] = True
    counts = torch.rand(50, 3, generator=generator) < 0.7
    return FactorisedCategorical(logits, allowed, counts)


def reference(factors):
    return Categorical(logits=factors.logits)


def test_log_prob_and_entropy_are_sums_over_the_factors_that_count(factors):
    actions = factors.sample(torch.Generator().manual_seed(1))
    expected = (reference(factors).log_prob(actions) * factors.counts).sum(-1)
    torch.testing.assert_close(factors.log_prob(actions), expected)
    probs = reference(factors).probs
    each = -(probs * probs.clamp_min(1e-30).log()).sum(-1)
    torch.testing.assert_close(factors.entropy(), (each * factors.counts).sum(-1))


def test_gradients_are_finite_and_zero_where_masked(factors):
    logits = factors._logits
    (factors.entropy().sum() + factors.log_prob(factors.mode()).sum()).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~factors.allowed] == 0).all()
    assert (logits.grad[~factors.counts] == 0).all()


def test_samples_are_allowed_and_as_frequent_as_their_probability():
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(20_000, 1, 4)
    allowed = torch.tensor([True, True, True, False]).expand(20_000, 1, 4)
    factors = FactorisedCategorical(logits, allowed, torch.ones(20_000, 1, dtype=torch.bool))
    samples = factors.sample(torch.Generator().manual_seed(0))
    frequencies = samples.flatten().bincount(minlength=4) / 20_000
    expected = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    assert frequencies[3] == 0
    assert (frequencies[:3] - expected).abs().max() < 0.015


def test_columns_are_scattered_and_differentiable():
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    out = scatter_columns({1: (torch.tensor([2, 0]), values)}, 3, 2)
    assert torch.equal(out, torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 1.0]]))
    out.sum().backward()
    assert torch.equal(values.grad, torch.ones(2))
