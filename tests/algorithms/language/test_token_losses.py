"""Token losses against scalar implementations of their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.language.losses import (
    cispo,
    cross_entropy,
    distillation_advantages,
    dpo_loss,
    dro,
    gspo,
    importance_sampling,
    ppo_clip,
    ppo_kl,
    preference_loss,
    reinforce,
    sequence_log_prob,
    value_loss,
)
from ratchet.algorithms.language.token_weights import importance_weights

ROWS, TOKENS = 3, 4


def _given(seed):
    generator = torch.Generator().manual_seed(seed)
    new, old, advantage = (
        torch.randn(ROWS, TOKENS, generator=generator).double() for _ in range(3)
    )
    mask = torch.rand(ROWS, TOKENS, generator=generator) < 0.7
    return new, new + 0.5 * old, advantage, mask.long()


def _by_token(compute, mask, *given_):
    """Apply a scalar formula to each token of the mask; 0 elsewhere."""
    rows = []
    for b in range(ROWS):
        row = []
        for t in range(TOKENS):
            numbers = [float(x[b, t]) for x in given_]
            row.append(compute(*numbers) if mask[b, t] else 0.0)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def _clip(value, low, high):
    return min(max(value, low), high)


def _ppo(new, old, a, low=0.1, high=0.3):
    ratio = math.exp(new - old)
    return max(-ratio * a, -_clip(ratio, 1 - low, 1 + high) * a)


def _dual(new, old, a, c=1.5):
    return min(_ppo(new, old, a), -c * a) if a < 0 else _ppo(new, old, a)


def _ppo_kl(new, old, a, beta=0.7):
    ratio = math.exp(new - old)
    return -ratio * a + beta * ((ratio - 1) - (new - old))


def _cispo(new, old, a, low=0.8, high=1.2):
    return -_clip(math.exp(new - old), low, high) * a * new


BY_TOKEN = {
    "cross entropy": (lambda n, _o, _a, m: cross_entropy(n, m), lambda n, _o, _a: -n),
    "reinforce": (lambda n, _o, a, m: reinforce(n, a, m), lambda n, _o, a: -n * a),
    "importance": (importance_sampling, lambda n, o, a: -math.exp(n - o) * a),
    "ppo": (lambda *x: ppo_clip(*x, clip_low=0.1, clip_high=0.3), _ppo),
    "dual": (lambda *x: ppo_clip(*x, clip_low=0.1, clip_high=0.3, dual_clip=1.5), _dual),
    "kl": (lambda *x: ppo_kl(*x, beta=0.7), _ppo_kl),
    "cispo": (
        lambda *x: cispo(*x, max_ratio=1.2),
        lambda n, o, a: -min(math.exp(n - o), 1.2) * a * n,
    ),
    "cispo with both bounds": (lambda *x: cispo(*x, min_ratio=0.8, max_ratio=1.2), _cispo),
    "dro": (lambda *x: dro(*x, beta=0.3), lambda n, o, a: -a * n + 0.15 * (n - o) ** 2),
}


@pytest.mark.parametrize("name", BY_TOKEN)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_token_losses_match_their_formulas(name, seed):
    compute, formula = BY_TOKEN[name]
    new, old, advantage, mask = _given(seed)
    expected = _by_token(formula, mask, new, old, advantage)
    torch.testing.assert_close(compute(new, old, advantage, mask).loss, expected)


# ρ = e^0.5 = 1.6487, A = ±2; both bounds of PPO 0.2, c = 3.
@pytest.mark.parametrize(
    ("compute", "log_ratio", "advantage", "expected"),
    [
        (ppo_clip, 0.5, 2.0, -1.2 * 2),
        (ppo_clip, 0.5, -2.0, 1.6487212707 * 2),
        (ppo_clip, -0.5, -2.0, 0.8 * 2),
        (ppo_clip, -0.5, 2.0, -0.6065306597 * 2),
        (lambda *x: ppo_clip(*x, dual_clip=3.0), 1.5, -2.0, 6.0),
        (lambda *x: ppo_clip(*x, dual_clip=3.0), 0.5, -2.0, 1.6487212707 * 2),
        (lambda *x: ppo_clip(*x, clip_high=0.28), 0.5, 2.0, -1.28 * 2),
        (lambda *x: cispo(*x, max_ratio=1.5), 0.5, 2.0, 1.5 * 2 * 1.0),
        (importance_sampling, 0.5, 2.0, -1.6487212707 * 2),
    ],
)
def test_golden_values(compute, log_ratio, advantage, expected):
    new = torch.tensor([[-1.0]], dtype=torch.float64)
    given_ = (new, new - log_ratio, torch.tensor([[advantage]]), torch.ones(1, 1))
    assert compute(*given_).loss.item() == pytest.approx(expected)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_gspo_has_one_ratio_per_row_and_its_gradient(seed):
    new, old, advantage, mask = _given(seed)
    advantage = advantage[:, :1].expand(ROWS, TOKENS)
    new.requires_grad_()
    ours = gspo(new, old, advantage, mask, clip_low=0.1, clip_high=0.2).loss
    expected = []
    for b in range(ROWS):
        shown = [t for t in range(TOKENS) if mask[b, t]]
        if not shown:
            expected.append(torch.zeros(TOKENS).double() * new[b])
            continue
        ratio = (sum(new[b, t] - old[b, t] for t in shown) / len(shown)).exp()
        a = advantage[b, 0]
        loss = torch.maximum(-ratio * a, -ratio.clamp(0.9, 1.2) * a)
        expected.append(torch.stack([loss if t in shown else new[b, t] * 0 for t in range(TOKENS)]))
    reference = torch.stack(expected)
    torch.testing.assert_close(ours, reference)
    gradient, theirs = (torch.autograd.grad(x.sum(), new, retain_graph=True)[0]
                        for x in (ours, reference))  # fmt: skip
    torch.testing.assert_close(gradient, theirs)


def test_cispo_keeps_the_gradient_of_tokens_that_ppo_would_clip():
    new = torch.tensor([[-1.0]], requires_grad=True)
    given_ = (new, torch.tensor([[-2.0]]), torch.tensor([[2.0]]), torch.ones(1, 1))
    assert torch.autograd.grad(ppo_clip(*given_).loss.sum(), new)[0].item() == 0
    loss = cispo(*given_, max_ratio=1.5).loss.sum()
    assert torch.autograd.grad(loss, new)[0].item() == pytest.approx(-1.5 * 2)


def test_cispo_has_the_ratio_weighted_gradient_of_reinforce():
    new = torch.tensor([[-1.0]], requires_grad=True)
    given_ = (new, torch.tensor([[-1.2]]), torch.tensor([[2.0]]), torch.ones(1, 1))
    loss = cispo(*given_, max_ratio=1.5).loss.sum()
    assert torch.autograd.grad(loss, new)[0].item() == pytest.approx(-math.exp(0.2) * 2)


@pytest.mark.parametrize(
    "compute", [importance_sampling, ppo_clip, gspo, cispo, lambda *x: ppo_kl(*x, beta=0.5)]
)
def test_only_the_trained_policy_has_a_gradient(compute):
    new, old, advantage, mask = _given(0)
    given_ = [values.requires_grad_() for values in (new, old, advantage)]
    compute(*given_, mask).loss.sum().backward()
    assert new.grad is not None
    assert (old.grad, advantage.grad) == (None, None)


def test_clip_fractions_distinguish_the_bounds():
    log_ratio = torch.tensor([[0.5, 0.5, -0.5, -0.5, 1.5, 0.0]])
    advantage = torch.tensor([[1.0, -1.0, 1.0, -1.0, -1.0, 1.0]])
    found = ppo_clip(log_ratio, torch.zeros(1, 6), advantage, torch.ones(1, 6), dual_clip=3.0)
    assert found.metrics["clip_fraction_high"].tolist() == [[1, 0, 0, 0, 0, 0]]
    assert found.metrics["clip_fraction_low"].tolist() == [[0, 0, 0, 1, 0, 0]]
    assert found.metrics["clip_fraction_dual"].tolist() == [[0, 0, 0, 0, 1, 0]]
    torch.testing.assert_close(found.metrics["ratio"], log_ratio.exp())
    kl = log_ratio.exp() - 1 - log_ratio
    torch.testing.assert_close(found.metrics["approximate_kl"], kl)


def test_dpo_matches_its_formula():
    chosen, rejected, ref_chosen, ref_rejected = -3.0, -4.0, -3.5, -3.0
    numbers = [torch.tensor([x]) for x in (chosen, rejected, ref_chosen, ref_rejected)]
    margin = 0.2 * ((chosen - ref_chosen) - (rejected - ref_rejected))
    found = dpo_loss(*numbers, beta=0.2)
    assert found.loss.item() == pytest.approx(math.log(1 + math.exp(-margin)))
    assert found.chosen_reward.item() == pytest.approx(0.2 * 0.5)
    assert found.rejected_reward.item() == pytest.approx(0.2 * -1.0)
    smooth = dpo_loss(*numbers, beta=0.2, label_smoothing=0.1).loss.item()
    expected = 0.9 * math.log(1 + math.exp(-margin)) + 0.1 * math.log(1 + math.exp(margin))
    assert smooth == pytest.approx(expected)
    log_prob, mask = torch.tensor([[-1.0, -2.0, float("nan")]]), torch.tensor([[0, 1, 0]])
    assert sequence_log_prob(log_prob, mask).tolist() == [-2.0]


def test_preferences_are_not_smoothed_by_default():
    margin = torch.tensor([1.0, -2.0], dtype=torch.float64)
    expected = [math.log1p(math.exp(-1.0)), math.log1p(math.exp(2.0))]
    assert preference_loss(margin).tolist() == pytest.approx(expected)


def test_dpo_of_equal_policies_is_log_two():
    same = torch.tensor([-2.0, -5.0])
    assert dpo_loss(same, same, same, same).loss.tolist() == pytest.approx([math.log(2)] * 2)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_distillation_advantages_are_discounted_log_ratios_to_the_teacher(gamma):
    log_prob = torch.tensor([[-1.0, -5.0, -2.0, -0.5]])
    teacher = torch.tensor([[-2.0, float("nan"), -1.0, -0.25]])
    mask = torch.tensor([[1, 0, 1, 1]])
    own = [-3 * (-1.0 + 2.0), -3 * (-2.0 + 1.0), -3 * (-0.5 + 0.25)]
    expected = [
        own[0] + gamma * own[1] + gamma**2 * own[2],
        0.0,
        own[1] + gamma * own[2],
        own[2],
    ]
    found = distillation_advantages(log_prob, teacher, mask, coefficient=3.0, gamma=gamma)
    assert found.tolist() == [pytest.approx(expected)]


def test_value_loss_is_clipped_around_the_old_value():
    value, target = torch.tensor([[3.0, 3.0, 9.0]]), torch.tensor([[4.0, 1.0, 0.0]])
    mask, old = torch.tensor([[1, 1, 0]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert value_loss(value, target, mask).loss.tolist() == [[1.0, 4.0, 0.0]]
    clipped = value_loss(value, target, mask, old_value=old, clip_value=0.5)
    assert clipped.loss.tolist() == [[2.5**2, 4.0, 0.0]]
    assert clipped.metrics["clip_fraction_value"].tolist() == [[1.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="needs old_value"):
        value_loss(value, target, mask, clip_value=0.5)


@pytest.mark.parametrize("cap", [None, 1.5])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_importance_weights_are_truncated_ratios(cap, seed):
    new, old, _, mask = _given(seed)
    bound = math.inf if cap is None else cap
    by_token = _by_token(lambda n, o: min(math.exp(n - o), bound), mask, new, old)
    found = importance_weights(new, old, mask, cap=cap)
    torch.testing.assert_close(found.weight, by_token)
    sums = ((new - old) * mask).sum(1, keepdim=True)
    by_row = torch.where(mask.bool(), sums.exp().clamp(max=bound), 0.0)
    torch.testing.assert_close(importance_weights(new, old, mask, level="sequence", cap=cap).weight,
                               by_row)  # fmt: skip
    if cap is not None and mask.any():
        uncapped = importance_weights(new, old, mask, cap=None).weight[mask.bool()]
        share = (uncapped > cap).double().mean().item()
        assert found.metrics["frac_capped"] == pytest.approx(share)


def test_importance_weights_of_the_same_policy_are_one():
    log_prob, mask = torch.tensor([[-1.0, -2.0], [-3.0, 9.0]]), torch.tensor([[1, 1], [1, 0]])
    for level in ("token", "sequence"):
        found = importance_weights(log_prob, log_prob, mask, level=level)
        assert found.weight.tolist() == [[1.0, 1.0], [1.0, 0.0]]
        assert found.metrics["effective_sample_size"] == pytest.approx(1)
        assert found.metrics["sampler_kl"] == found.metrics["frac_capped"] == 0
    empty = torch.zeros(0, 2)
    assert importance_weights(empty, empty, empty).metrics["weight_max"] == 0
    with pytest.raises(ValueError, match="cap: got 0"):
        importance_weights(log_prob, log_prob, mask, cap=0)
