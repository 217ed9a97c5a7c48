"""The common bound of log-ratios: losses and gradients stay finite for any change of π."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratchet.algorithms.kl import MAX_LOG_RATIO, bounded_log_ratio, kl_estimate
from ratchet.algorithms.language import losses
from ratchet.algorithms.language.token_weights import importance_weights
from ratchet.algorithms.policy_losses import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    effective_sample_size,
    kl_penalty_policy_loss,
)
from ratchet.algorithms.sampled_game import clipped_slope

DISTANCES = st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=6)
SIGNS = st.sampled_from([-1.0, 0.0, 1.0])
TOKENS = {
    "importance sampling": losses.importance_sampling,
    "ppo": losses.ppo_clip,
    "ppo with a dual clip": lambda *x: losses.ppo_clip(*x, dual_clip=3.0),
    "ppo with a KL penalty": lambda *x: losses.ppo_kl(*x, beta=0.5),
    "gspo": losses.gspo,
    "cispo": losses.cispo,
    "dro": losses.dro,
    "k1": lambda new, old, _a, mask: losses.kl_loss(new, old, mask, kind="k1"),
    "k2": lambda new, old, _a, mask: losses.kl_loss(new, old, mask, kind="k2"),
    "k3": lambda new, old, _a, mask: losses.kl_loss(new, old, mask, kind="k3"),
}
FRAMES = {
    "clipped": lambda d, a, m: clipped_policy_loss(d, a, m, clip_epsilon=0.2),
    "penalised": lambda d, a, m: kl_penalty_policy_loss(d, a, m, beta=torch.ones(1))[0],
}


@pytest.mark.parametrize("name", TOKENS)
@given(distances=DISTANCES, sign=SIGNS)
def test_losses_of_tokens_and_their_gradients_are_finite(name, distances, sign):
    new = torch.tensor([distances], requires_grad=True)
    found = TOKENS[name](
        new, torch.zeros_like(new), torch.full_like(new, sign), torch.ones_like(new)
    )
    (gradient,) = torch.autograd.grad(found.loss.sum(), new)
    assert found.loss.isfinite().all()
    assert gradient.isfinite().all()
    assert all(metric.isfinite().all() for metric in found.metrics.values())


@pytest.mark.parametrize("name", FRAMES)
@given(distances=DISTANCES, sign=SIGNS)
def test_losses_of_frames_and_their_gradients_are_finite(name, distances, sign):
    new = torch.tensor([distances], requires_grad=True).T
    mask = torch.ones_like(new, dtype=torch.bool)
    loss = FRAMES[name](new, torch.full_like(new, sign), mask)
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    for measure in (approximate_kl, effective_sample_size):
        assert measure(new, mask).isfinite().all()
    assert 0 <= clip_fraction(new, mask, clip_epsilon=0.2).item() <= 1


@given(distances=DISTANCES, sign=SIGNS)
def test_slopes_of_sampled_games_are_the_derivatives_of_the_clipped_loss(distances, sign):
    new = torch.tensor([distances], requires_grad=True)
    mask, advantage = torch.ones_like(new, dtype=torch.bool), torch.full_like(new, sign)
    loss = losses.ppo_clip(new, torch.zeros_like(new), advantage, mask).loss
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    slope = clipped_slope(new.detach(), advantage, mask, clip_epsilon=0.2)
    torch.testing.assert_close(-advantage * slope, gradient)


@pytest.mark.parametrize("level", ["token", "sequence"])
@given(distances=DISTANCES)
def test_importance_weights_and_their_metrics_are_finite(level, distances):
    new = torch.tensor([distances])
    found = importance_weights(new, torch.zeros_like(new), torch.ones_like(new), level=level)
    assert found.weight.isfinite().all()
    assert all(map(math.isfinite, found.metrics.values()))


@pytest.mark.parametrize(("log_ratio", "advantage"), [(25.0, -1.0), (100.0, 1.0), (-100.0, -1.0)])
def test_beyond_the_bound_the_gradient_is_zero(log_ratio, advantage):
    new = torch.tensor([[log_ratio]], requires_grad=True)
    loss = losses.ppo_clip(new, torch.zeros(1, 1), torch.full((1, 1), advantage), torch.ones(1, 1))
    assert torch.autograd.grad(loss.loss.sum(), new)[0].item() == 0


@given(st.floats(-MAX_LOG_RATIO, MAX_LOG_RATIO))
def test_within_the_bound_ratios_are_unchanged(value):
    log_ratio = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    assert bounded_log_ratio(log_ratio).item() == value
    assert torch.autograd.grad(bounded_log_ratio(log_ratio), log_ratio)[0].item() == 1
    k3 = math.expm1(-value) + value
    assert kl_estimate(log_ratio, "k3").item() == pytest.approx(k3, rel=1e-12, abs=1e-15)
