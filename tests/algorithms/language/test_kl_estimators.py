"""Values and gradients of the three KL estimators."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.kl import adapt_kl_coefficient, kl_estimate
from ratchet.algorithms.language.losses import kl_loss, penalised_rewards

P = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
Q = torch.tensor([0.3, 0.4, 0.3], dtype=torch.float64)


def _kl(p, q):
    return (p * (p.log() - q.log())).sum()


def _gradient_of_expectation(kind, q=Q):
    """Return E∇k by the policy's logits, over all tokens of the vocabulary."""
    logits = P.log().requires_grad_()
    log_prob = logits.log_softmax(0).view(1, -1)
    loss = kl_loss(log_prob, q.log().view(1, -1), torch.ones(1, 3), kind=kind).loss
    (loss * P).sum().backward()
    return logits.grad


def _gradient(of):
    logits = P.log().requires_grad_()
    of(logits.softmax(0)).backward()
    return logits.grad


def test_values_on_two_distributions():
    assert _kl(P, Q).item() == pytest.approx(0.2197, abs=5e-5)
    value = {kind: (P * kl_estimate(P.log() - Q.log(), kind)).sum() for kind in ("k1", "k2", "k3")}
    torch.testing.assert_close(value["k1"], _kl(P, Q))
    torch.testing.assert_close(value["k3"], _kl(P, Q))
    assert abs(value["k2"] - _kl(P, Q)) > 0.002


def test_k1_as_a_loss_has_zero_expected_gradient():
    torch.testing.assert_close(_gradient_of_expectation("k1"), torch.zeros(3).double())


def test_k2_as_a_loss_is_the_divergence_from_the_reference():
    expected = _gradient(lambda policy: _kl(policy, Q))
    torch.testing.assert_close(_gradient_of_expectation("k2"), expected)


def test_k3_as_a_loss_is_the_divergence_of_the_reference_from_the_policy():
    expected = _gradient(lambda policy: _kl(Q, policy))
    torch.testing.assert_close(_gradient_of_expectation("k3"), expected)
    assert not torch.allclose(expected, _gradient(lambda policy: _kl(policy, Q)))


def test_k1_in_rewards_has_the_gradient_of_k2_as_a_loss():
    reward = penalised_rewards(
        torch.zeros(1, 3), P.log().view(1, 3), Q.log().view(1, 3), torch.ones(1, 3), coefficient=1.0
    )
    logits = P.log().requires_grad_()
    (-(P * reward.view(-1)) * logits.log_softmax(0)).sum().backward()
    torch.testing.assert_close(logits.grad, _gradient_of_expectation("k2"))


@given(log_ratio=st.floats(-10, 10))
@settings(max_examples=50, deadline=None)
def test_k2_and_k3_are_never_negative_and_agree_near_zero(log_ratio):
    given_ = torch.tensor(log_ratio, dtype=torch.float64)
    k2, k3 = kl_estimate(given_, "k2"), kl_estimate(given_, "k3")
    assert k2 >= 0
    assert k3 >= 0
    small = given_ * 1e-4
    assert (kl_estimate(small, "k2") - kl_estimate(small, "k3")).abs() <= small.abs() ** 3 + 1e-15


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.1, 0.2), (1.0, 0.2 * (1 + 0.2 * 5 / 50)), (0.0, 0.2 * (1 - 0.2 * 5 / 50)),
     (0.11, 0.2 * (1 + 0.1 * 5 / 50))],
)  # fmt: skip
def test_adaptive_coefficient_follows_the_target(kl, expected):
    new = adapt_kl_coefficient(0.2, kl, target=0.1, horizon=50, num_samples=5)
    assert new == pytest.approx(expected)
