"""GAE, n-step returns and reward-to-go against TorchRL, brute force and closed forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrl.objectives.value.functional import generalized_advantage_estimate

from ratchet.algorithms.advantages import gae, n_step_returns, reward_to_go

GAMMA, LMBDA = 0.9, 0.8


def _random(seed, shape=(3, 7, 2), p_done=0.3):
    generator = torch.Generator().manual_seed(seed)
    reward, value, final = (torch.randn(shape, generator=generator).double() for _ in range(3))
    done = torch.rand(shape, generator=generator) < p_done
    acting = torch.rand(shape, generator=generator) < 0.6
    return reward, value, final, done, acting


@given(seed=st.integers(0, 10_000), truncated=st.booleans())
@settings(max_examples=25, deadline=None)
def test_gae_equals_torchrls_if_all_agents_act_in_every_step(seed, truncated):
    reward, value, final, done, _ = _random(seed)
    terminated = done & (torch.arange(7) % 2 == 0).view(1, 7, 1) if truncated else done
    everywhere = torch.ones_like(done)
    ours = gae(
        reward,
        value,
        everywhere,
        done,
        gamma=GAMMA,
        lmbda=LMBDA,
        terminated=terminated,
        final_value=final,
        final_known=everywhere,
    )
    following = torch.cat([value[:, 1:], final[:, -1:]], dim=1)
    following = torch.where(done & ~terminated, final, following)
    advantage, target = generalized_advantage_estimate(
        GAMMA, LMBDA, value, following, reward, done, terminated
    )
    # TorchRL discounts in single precision.
    torch.testing.assert_close(ours.advantage, advantage, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.value_target, target, rtol=1e-5, atol=1e-6)
    assert ours.learns.all()


def _brute_force(reward, value, acting, done, final, final_known):
    """Compute one agent's advantages ``[T]`` backwards with scalars; None is unknown."""
    steps = len(reward)
    advantages, learns = [0.0] * steps, [False] * steps
    next_value = float(final) if final_known else None
    next_advantage = 0.0
    for t in reversed(range(steps)):
        if done[t]:
            next_value, next_advantage = 0.0, 0.0
        backed_up = None if next_value is None else float(reward[t]) + GAMMA * next_value
        delta = 0.0
        if acting[t] and backed_up is not None:
            delta, learns[t] = backed_up - float(value[t]), True
        known = backed_up is not None
        next_advantage = delta + GAMMA * LMBDA * next_advantage if known else 0.0
        next_value = float(value[t]) if acting[t] else backed_up
        advantages[t] = next_advantage
    return advantages, learns


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_gae_with_inactive_agents_equals_brute_force(seed):
    reward, value, final, done, acting = _random(seed)
    known = _random(seed + 1)[4]
    result = gae(
        reward, value, acting, done, gamma=GAMMA, lmbda=LMBDA, final_value=final, final_known=known
    )
    for env in range(3):
        for agent in range(2):
            advantages, learns = _brute_force(
                *(x[env, :, agent] for x in (reward, value, acting, done)),
                final[env, -1, agent],
                known[env, -1, agent],
            )
            assert result.learns[env, :, agent].tolist() == learns
            got = result.advantage[env, :, agent]
            torch.testing.assert_close(got, torch.tensor(advantages, dtype=torch.float64))


def test_values_of_inactive_agents_have_no_effect():
    reward, value, final, done, acting = _random(3)
    other = torch.where(acting, value, 1e6)
    options = {"gamma": GAMMA, "lmbda": LMBDA, "final_value": final, "final_known": acting}
    one, two = (gae(reward, v, acting, done, **options) for v in (value, other))
    torch.testing.assert_close(one.advantage, two.advantage)


def test_gae_golden_values_for_alternating_agents():
    # The agent acts in steps 0 and 2; rewards are 1 in step 1 and 2 in the last step, 2.
    reward = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1)
    value = torch.tensor([0.5, 99.0, 1.5]).view(1, 3, 1)
    acting = torch.tensor([True, False, True]).view(1, 3, 1)
    done = torch.tensor([False, False, True]).view(1, 3, 1)
    result = gae(reward, value, acting, done, gamma=0.5, lmbda=0.5)
    # V_1 = 1 + .5·1.5 = 1.75; A_2 = .5; A_1 = .25·.5; A_0 = .5·1.75 − .5 + .25·A_1
    assert result.value.flatten().tolist() == [0.5, 1.75, 1.5]
    assert result.advantage.flatten().tolist() == [0.40625, 0.125, 0.5]
    assert result.learns.flatten().tolist() == [True, False, True]


def test_an_action_with_truncated_consequences_is_excluded():
    reward = torch.zeros(1, 3, 1)
    value = torch.ones(1, 3, 1)
    acting = torch.tensor([True, True, False]).view(1, 3, 1)
    done = torch.zeros(1, 3, 1, dtype=torch.bool)
    result = gae(reward, value, acting, done, gamma=0.9, lmbda=0.9)
    assert result.learns.flatten().tolist() == [True, False, False]
    assert result.advantage.flatten()[1:].tolist() == [0.0, 0.0]


def test_n_step_returns_golden_values():
    reward = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    following = torch.tensor([10.0, 20.0, 30.0, 40.0]).view(1, 4, 1)
    done = torch.tensor([False, False, True, False]).view(1, 4, 1)
    got = n_step_returns(reward, following, done, num_steps=2, gamma=0.5)
    assert got.flatten().tolist() == [1 + 1 + 0.25 * 20, 2 + 1.5, 3.0, 4 + 20]
    one = n_step_returns(reward, following, done, num_steps=1, gamma=0.5)
    assert one.flatten().tolist() == [6.0, 12.0, 3.0, 24.0]
    truncated = n_step_returns(
        reward, following, done, num_steps=2, gamma=0.5, terminated=torch.zeros_like(done)
    )
    assert truncated.flatten().tolist() == [7.0, 2 + 1.5 + 0.25 * 30, 3 + 15, 24.0]
    with pytest.raises(ValueError, match="num_steps: got 0"):
        n_step_returns(reward, following, done, num_steps=0, gamma=0.5)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_reward_to_go_is_the_limit_of_gae_and_of_n_steps(seed):
    reward, _, _, done, _ = _random(seed)
    zeros, everywhere = torch.zeros_like(reward), torch.ones_like(done)
    expected = reward_to_go(reward, done, gamma=GAMMA)
    with_gae = gae(reward, zeros, everywhere, done, gamma=GAMMA, lmbda=1.0, final_known=everywhere)
    torch.testing.assert_close(with_gae.advantage, expected)
    torch.testing.assert_close(
        n_step_returns(reward, zeros, done, num_steps=20, gamma=GAMMA), expected
    )
