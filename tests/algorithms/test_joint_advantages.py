"""Advantages of other agents' actions, with baselines independent of the action."""

from __future__ import annotations

import pytest
import torch

from ratchet.algorithms.advantages import gae
from ratchet.algorithms.joint_advantages import (
    joint_advantages,
    known_consequences,
    normalize_joint_advantages,
)
from ratchet.algorithms.masks import masked_whiten

GAMMA = 0.5


def one_agent(reward, value, acting, done, *, gamma=GAMMA):
    """Return joint and own advantages of one agent, from rows ``[E][T]``."""
    given = [torch.tensor(x).unsqueeze(-1) for x in (reward, value, acting, done)]
    reward, value, acting, done = given
    estimate = gae(reward, value, acting, done, gamma=gamma, lmbda=1.0)
    cut = torch.zeros_like(done)
    cut[:, -1] = ~done[:, -1]
    known = known_consequences(estimate.learns, acting, done, cut, torch.zeros_like(done))
    step = torch.arange(reward.shape[1]).expand(reward.shape[:2])
    joint = joint_advantages(
        reward, value, estimate.value_target, acting, known, done, step=step, gamma=gamma
    )
    return joint, estimate


def test_a_decisive_message_has_an_advantage_for_its_receiver():
    # Two episodes: another agent's message in step 0 determines the agent's reward in step 1,
    # and the agent's critic predicts it after the message.
    reward = [[0.0, 1.0], [0.0, -1.0]]
    value = [[0.0, 1.0], [0.0, -1.0]]
    acting = [[False, True]] * 2
    done = [[False, True]] * 2
    joint, estimate = one_agent(reward, value, acting, done)
    # The usual estimate is 0, since the critic has predicted the message's consequence.
    assert estimate.advantage.flatten().tolist() == [0.0] * 4
    # Relative to the other episode's return ∓0.5, the message's advantage is ±1.
    assert joint.advantage[:, 0, 0].tolist() == [1.0, -1.0]
    assert joint.advantage[:, 1, 0].tolist() == [0.0, 0.0]


def test_the_critics_last_value_is_the_baseline_until_its_next_value():
    # The agent acts in step 0 with value 2 and reward 1, then expects (2 − 1)/γ = 2.
    done = [[False, False, True]]
    joint, _ = one_agent([[1.0, 0.0, 6.0]], [[2.0, 9.0, 9.0]], [[True, False, False]], done)
    assert joint.advantage.flatten().tolist() == [1 + 0.5 * (0.5 * 6) - 2, 0.5 * 6 - 2, 6 - 2 / 0.5]


def test_values_of_the_previous_episode_have_no_effect():
    joint, _ = one_agent([[1.0, 3.0]], [[2.0, 9.0]], [[True, False]], [[True, True]])
    assert joint.advantage.flatten().tolist() == [-1.0, 3.0]


def test_own_advantages_equal_gae():
    generator = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(5, 4, generator=generator).tolist() for _ in range(2))
    acting = (torch.rand(5, 4, generator=generator) < 0.6).tolist()
    done = (torch.rand(5, 4, generator=generator) < 0.4).tolist()
    joint, estimate = one_agent(reward, value, acting, done)
    learns = estimate.learns
    torch.testing.assert_close(joint.advantage[learns], estimate.advantage[learns])
    assert not (joint.advantage[~joint.known] != 0).any()


def test_consequences_are_unknown_in_a_truncated_episode():
    joint, _ = one_agent(
        [[0.0, 0.0, 5.0]], [[1.0, 1.0, 1.0]], [[False, True, False]], [[False, False, False]]
    )
    # The value in step 1 is a consequence of step 0; the consequences of steps 1 and 2 are unknown.
    assert joint.known.flatten().tolist() == [True, False, False]


def test_discount_zero_carries_no_baseline():
    joint, _ = one_agent([[1.0, 3.0]], [[2.0, 9.0]], [[True, False]], [[False, True]], gamma=0.0)
    assert joint.advantage.flatten().tolist() == [-1.0, 3.0]


def test_the_baseline_is_independent_of_its_own_return():
    returns = []
    for won in (0.0, 100.0):
        reward = [[won], [1.0], [3.0]]
        joint, _ = one_agent(reward, [[0.0]] * 3, [[False]] * 3, [[True]] * 3)
        returns.append(float(joint.advantage[0]))
    assert returns == [-2.0, 98.0]


def test_normalised_own_advantages_are_whitened_and_others_share_their_scale():
    generator = torch.Generator().manual_seed(1)
    advantage = 3 * torch.randn(30, 2, generator=generator) + 1
    own = torch.rand(30, 2, generator=generator) < 0.5
    known = own | (torch.rand(30, 2, generator=generator) < 0.8)
    found = normalize_joint_advantages(advantage, own, known)
    torch.testing.assert_close(torch.where(own, found, 0.0), masked_whiten(advantage, own))
    for agent in range(2):
        others = (known & ~own)[:, agent]
        deviation = advantage[own[:, agent], agent].std(correction=0)
        scaled = advantage[others, agent] / deviation
        torch.testing.assert_close(found[others, agent], scaled - scaled.mean())
    assert found[~known].abs().sum() == 0


@pytest.mark.parametrize("size", [0, 1, 3])
def test_constant_advantages_are_normalised_to_zero(size):
    own = torch.zeros(5, 1, dtype=torch.bool)
    own[:size] = True
    found = normalize_joint_advantages(
        torch.where(own, 2.0, torch.arange(5.0).unsqueeze(1)), own, torch.ones_like(own)
    )
    assert found.abs().sum() == 0
