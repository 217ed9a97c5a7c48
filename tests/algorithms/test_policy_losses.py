"""PPO and critic losses against manually derived values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.critic_losses import critic_loss, explained_variance
from ratchet.algorithms.kl import adapt_kl_beta
from ratchet.algorithms.masks import masked_mean, masked_variance, masked_whiten
from ratchet.algorithms.policy_losses import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    effective_sample_size,
    kl_penalty_policy_loss,
)

ALL = torch.ones(4, 1, dtype=torch.bool)


def test_clipped_loss_and_gradient_golden_values():
    # ratio 1.1 (inside), 1.5 with A > 0 (clipped: no gradient), 1.5 with A < 0 (not
    # clipped), 0.5 with A < 0 (clipped). The gradient of −ρA in log π is −ρA.
    ratio = torch.tensor([[1.1], [1.5], [1.5], [0.5]], dtype=torch.float64)
    advantage = torch.tensor([[2.0], [2.0], [-1.0], [-1.0]], dtype=torch.float64)
    log_ratio = ratio.log().requires_grad_()
    loss = clipped_policy_loss(log_ratio, advantage, ALL, clip_epsilon=0.2)
    assert loss.item() == pytest.approx((-2.2 - 2.4 + 1.5 + 0.8) / 4)
    loss.sum().backward()
    expected = torch.tensor([[-2.2], [0.0], [1.5], [0.0]], dtype=torch.float64) / 4
    torch.testing.assert_close(log_ratio.grad, expected)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_masked_out_frames_affect_neither_loss_nor_gradient(seed):
    generator = torch.Generator().manual_seed(seed)
    log_ratio = torch.randn(9, 2, generator=generator)
    advantage = torch.randn(9, 2, generator=generator)
    mask = torch.rand(9, 2, generator=generator) < 0.5
    outcomes = []
    for hidden in (0.0, 50.0, -50.0):
        given_ratio = torch.where(mask, log_ratio, hidden).requires_grad_()
        shown = torch.where(mask, advantage, hidden)
        beta = torch.ones(2)
        loss = clipped_policy_loss(given_ratio, shown, mask, clip_epsilon=0.2)
        loss = loss + kl_penalty_policy_loss(given_ratio, shown, mask, beta=beta)[0]
        loss.sum().backward()
        outcomes.append((loss.detach(), given_ratio.grad))
    for loss, gradient in outcomes[1:]:
        torch.testing.assert_close(loss, outcomes[0][0])
        torch.testing.assert_close(gradient, outcomes[0][1])
    assert (outcomes[0][1][~mask] == 0).all()


def test_the_kl_penalty_has_the_value_and_the_gradient_of_the_divergence():
    # The exact expectation under π_old over three actions: KL(π_old‖π) and its gradient.
    old = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    logits = torch.tensor([0.3, 0.4, 0.3], dtype=torch.float64).log().requires_grad_()
    log_new = torch.log_softmax(logits, -1)
    log_ratio = log_new - old.log()
    terms = torch.expm1(log_ratio) - log_ratio
    (estimate,) = torch.autograd.grad((old * terms).sum(), logits, retain_graph=True)
    divergence = (old * -log_ratio).sum()
    (exact,) = torch.autograd.grad(divergence, logits)
    assert divergence.item() == pytest.approx(0.2197, abs=1e-4)
    assert (old * terms).sum().item() == pytest.approx(divergence.item())
    torch.testing.assert_close(estimate, exact)


def test_kl_penalty_loss_golden_values():
    log_ratio = torch.tensor([[0.5], [-0.5], [0.0], [9.0]])
    mask = torch.tensor([[True], [True], [True], [False]])
    advantage = torch.ones(4, 1)
    loss, kl = kl_penalty_policy_loss(log_ratio, advantage, mask, beta=torch.tensor([3.0]))
    expected = (math.exp(0.5) + math.exp(-0.5) - 2) / 3
    assert kl.item() == pytest.approx(expected, rel=1e-5)
    mean_ratio = (math.exp(0.5) + math.exp(-0.5) + 1) / 3
    assert loss.item() == pytest.approx(-mean_ratio + 3 * expected, rel=1e-5)
    torch.testing.assert_close(approximate_kl(log_ratio, mask), kl)


def test_beta_doubles_above_and_halves_below_one_and_a_half_times_the_target():
    kl = torch.tensor([0.0151, 0.0149, 0.01, 0.0067, 0.0066])
    beta = adapt_kl_beta(torch.ones(5), kl, target=0.01, increment=2.0, decrement=0.5)
    assert beta.tolist() == [2.0, 1.0, 1.0, 1.0, 0.5]


def test_clip_fraction_and_effective_sample_size():
    log_ratio = torch.tensor([[1.5, 1.0], [1.1, 1.0], [0.5, 1.0], [7.0, 1.0]]).log()
    mask = torch.tensor([[True, True], [True, True], [True, False], [False, False]])
    got = clip_fraction(log_ratio, mask, clip_epsilon=0.2)
    assert got.tolist() == pytest.approx([2 / 3, 0.0])
    sizes = effective_sample_size(log_ratio, mask)
    assert sizes.tolist() == pytest.approx([3.1**2 / (3 * (2.25 + 1.21 + 0.25)), 1.0])
    assert effective_sample_size(log_ratio, torch.zeros_like(mask)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "expected"), [("l2", (9 + 0.25) / 2), ("l1", 3.5 / 2), ("smooth_l1", 2.625 / 2)]
)
def test_critic_losses_golden_values(kind, expected):
    value = torch.tensor([[3.0], [0.5], [100.0]])
    mask = torch.tensor([[True], [True], [False]])
    assert critic_loss(value, torch.zeros(3, 1), mask, kind=kind).item() == pytest.approx(expected)


def test_a_clipped_value_cannot_gain_by_leaving_the_old_one():
    value = torch.tensor([[1.0], [1.0]], requires_grad=True)
    old, target = torch.tensor([[0.0], [0.95]]), torch.tensor([[2.0], [2.0]])
    mask = torch.ones(2, 1, dtype=torch.bool)
    loss = critic_loss(value, target, mask, kind="l2", old_value=old, clip_value=0.1)
    assert loss.item() == pytest.approx((1.9**2 + 1) / 2)
    loss.sum().backward()
    assert value.grad.flatten().tolist() == pytest.approx([0.0, -1.0])
    with pytest.raises(ValueError, match="clip_value needs old_value"):
        critic_loss(value, target, mask, clip_value=0.1)


def test_explained_variance():
    target = torch.tensor([[1.0, 1.0, 5.0], [3.0, 3.0, 5.0]])
    value = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert explained_variance(value, target, mask).tolist() == [1.0, 0.0, 0.0]


def test_whitening_is_per_agent_over_the_mask():
    values = torch.tensor([[1.0, 7.0], [3.0, float("nan")], [50.0, 1.0]])
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    white = masked_whiten(values, mask)
    assert white.flatten().tolist() == pytest.approx([-1, 0, 1, 0, 0, 0], abs=1e-5)


def test_masked_means_are_zero_if_empty_and_ignore_masked_out_values():
    values = torch.tensor([[float("nan"), 2.0], [float("inf"), 4.0]])
    mask = torch.tensor([[False, True], [False, True]])
    assert masked_mean(values, mask, 0).tolist() == [0.0, 3.0]
    assert masked_variance(values, mask, 0).tolist() == [0.0, 1.0]
    assert masked_mean(values, mask).item() == 3.0
