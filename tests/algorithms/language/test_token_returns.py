"""Token returns and advantages against loops that pass through masked-out tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.language.returns import (
    spread_over_tokens,
    token_gae,
    token_n_step_returns,
    token_reward_to_go,
    whiten_tokens,
)

GAMMA, LMBDA = 0.9, 0.8


def _given(seed, rows=4, tokens=7):
    generator = torch.Generator().manual_seed(seed)
    reward, value = (torch.randn(rows, tokens, generator=generator).double() for _ in range(2))
    mask = (torch.rand(rows, tokens, generator=generator) < 0.6).long()
    final = torch.randn(rows, generator=generator).double()
    return reward, value, mask, final


def _gae_by_hand(reward, value, mask, final):
    advantages = [0.0] * len(mask)
    next_value, next_advantage = float(final), 0.0
    for t in reversed(range(len(mask))):
        if mask[t]:  # else V and A pass through unchanged
            delta = float(reward[t]) + GAMMA * next_value - float(value[t])
            next_advantage = delta + GAMMA * LMBDA * next_advantage
            next_value = float(value[t])
            advantages[t] = next_advantage
    return advantages


@given(seed=st.integers(0, 10_000), cut=st.booleans())
@settings(max_examples=25, deadline=None)
def test_gae_skips_masked_out_tokens(seed, cut):
    reward, value, mask, final = _given(seed)
    final_value = final if cut else None
    found = token_gae(reward, value, mask, gamma=GAMMA, lmbda=LMBDA, final_value=final_value)
    rows = zip(reward, value, mask, final if cut else [0.0] * 4, strict=True)
    expected = torch.tensor([_gae_by_hand(*row) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(found.advantage, expected)
    torch.testing.assert_close(found.returns, torch.where(mask.bool(), expected + value, 0.0))


def test_gae_golden_values():
    # The model wrote tokens 1 and 3; the environment's token between them takes no time.
    reward, value = torch.tensor([[9.0, 0.0, 9.0, 1.0]]), torch.tensor([[9.0, 0.5, 9.0, 0.25]])
    found = token_gae(reward, value, torch.tensor([[0, 1, 0, 1]]), gamma=0.5, lmbda=0.5)
    last = 1.0 - 0.25
    assert found.advantage.tolist() == [[0, 0.5 * 0.25 - 0.5 + 0.25 * last, 0, last]]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 10])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_n_step_returns_count_only_masked_in_tokens(num_steps, seed):
    reward, value, mask, final = _given(seed)
    found = token_n_step_returns(
        reward, value, mask, num_steps=num_steps, gamma=GAMMA, final_value=final
    )
    for b in range(len(mask)):
        shown = [t for t in range(mask.shape[1]) if mask[b, t]]
        for position, t in enumerate(shown):
            ahead = shown[position : position + num_steps]
            expected = sum(GAMMA**k * float(reward[b, at]) for k, at in enumerate(ahead))
            after = position + num_steps
            rest = value[b, shown[after]] if after < len(shown) else final[b]
            expected += GAMMA ** len(ahead) * float(rest)
            assert found[b, t].item() == pytest.approx(expected)
    assert (found[mask == 0] == 0).all()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_reward_to_go_is_the_n_step_return_with_large_n_and_a_zero_critic(seed):
    reward, value, mask, _ = _given(seed)
    found = token_reward_to_go(reward, mask, gamma=GAMMA)
    steps = token_n_step_returns(reward, value * 0, mask, num_steps=7, gamma=GAMMA)
    torch.testing.assert_close(found, steps)
    gae = token_gae(reward, value, mask, gamma=GAMMA, lmbda=1.0)
    torch.testing.assert_close(gae.returns, found)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_whitening_is_over_the_complete_batch(seed):
    values, _, mask, _ = _given(seed)
    shown = [
        x for x, m in zip(values.flatten().tolist(), mask.flatten().tolist(), strict=True) if m
    ]
    found = whiten_tokens(values, mask)
    mean = sum(shown) / max(1, len(shown))
    deviation = math.sqrt(sum((x - mean) ** 2 for x in shown) / max(1, len(shown)))
    expected = torch.where(mask.bool(), (values - mean) / (deviation + 1e-6), 0.0)
    torch.testing.assert_close(found, expected)


def test_a_rows_value_is_broadcast_to_its_tokens():
    spread = spread_over_tokens(torch.tensor([2.0, -1.0]), torch.tensor([[0, 1, 1], [1, 0, 0]]))
    assert spread.tolist() == [[0.0, 2.0, 2.0], [-1.0, 0.0, 0.0]]


def test_empty_batch():
    empty = torch.zeros(0, 3)
    assert token_gae(empty, empty, empty).advantage.shape == (0, 3)
    assert token_reward_to_go(empty, empty).shape == (0, 3)
    nothing = torch.zeros(2, 3)
    assert token_gae(nothing + 5, nothing, nothing).returns.abs().sum() == 0
