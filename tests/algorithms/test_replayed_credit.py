"""Replayed credit is the exact policy gradient in expectation, over every draw of a small game."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratchet.algorithms.language.group_advantages import group_advantages
from ratchet.algorithms.replayed_credit import credited_replies, original_rows
from ratchet.errors import DataError

SPEAKERS = (0, 1, 0)
"""Agent 0 speaks, agent 1 replies, agent 0 decides with the same parameters; all hear all."""
SIZE = 3


class MessageGame:
    """Three turns of two agents; replies are picked by a random number in each turn."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.theta = generator.normal(size=(2, SIZE))
        # Quarters are exact in single precision, in which advantages are returned.
        self.reward = generator.integers(-8, 9, size=(2, SIZE, SIZE, SIZE)) / 4
        self.offsets = {
            prefix: generator.normal(size=SIZE)
            for turn in range(len(SPEAKERS))
            for prefix in itertools.product(range(SIZE), repeat=turn)
        }

    def policy(self, prefix):
        logits = self.theta[SPEAKERS[len(prefix)]] + self.offsets[prefix]
        odds = np.exp(logits - logits.max())
        return odds / odds.sum()

    def cells(self, turn):
        """Return the intervals of a turn's number in which no reply changes: middle, width."""
        inner = [
            self.policy(prefix).cumsum()[:-1]
            for prefix in itertools.product(range(SIZE), repeat=turn)
        ]
        edges = np.unique(np.concatenate([[0.0, 1.0], *inner]))
        return list(zip((edges[1:] + edges[:-1]) / 2, np.diff(edges), strict=True))

    def play(self, prefix, numbers):
        for number in numbers[len(prefix) :]:
            prefix += (int(np.searchsorted(self.policy(prefix).cumsum(), number)),)
        return prefix

    def score(self, prefix, reply):
        return np.eye(SIZE)[reply] - self.policy(prefix)

    def gradient(self, agent):
        """Return the exact gradient of an agent's expected reward in its parameters."""
        total = np.zeros(SIZE)
        for episode in itertools.product(range(SIZE), repeat=len(SPEAKERS)):
            prefixes = [episode[:turn] for turn in range(len(SPEAKERS))]
            chance = np.prod([self.policy(p)[episode[len(p)]] for p in prefixes])
            scores = [self.score(p, episode[len(p)]) for p in prefixes if self.acts(agent, p)]
            total += chance * self.reward[agent][episode] * np.sum(scores, axis=0)
        return total

    @staticmethod
    def acts(agent, prefix):
        return SPEAKERS[len(prefix)] == agent

    def draws(self, turn, number):
        """Iterate over (chance, episode, redrawn episodes) for all random numbers."""
        every = [self.cells(each) for each in range(len(SPEAKERS))]
        for outcome in itertools.product(*every, *[every[turn]] * number):
            chance = np.prod([width for _, width in outcome])
            numbers = [middle for middle, _ in outcome]
            common, fresh = numbers[: len(SPEAKERS)], numbers[len(SPEAKERS) :]
            original = self.play((), common)
            redrawn = [
                self.play(original[:turn], [*common[:turn], each, *common[turn + 1 :]])
                for each in fresh
            ]
            yield chance, original, redrawn


@pytest.fixture(scope="module")
def game():
    return MessageGame()


def rollouts_of(game, turn, number):
    """Return chances, episodes, node ids and sizes of all outcomes of redrawing a turn."""
    chances, episodes = [], []
    for chance, original, redrawn in game.draws(turn, number):
        chances += [chance] * (1 + number)
        episodes += [original, *redrawn]
    node_id = np.full((len(episodes), len(SPEAKERS)), -1)
    node_id[np.arange(len(episodes)) % (1 + number) > 0, turn] = SPEAKERS[turn]
    return np.array(chances), episodes, node_id


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("agent", [0, 1])
def test_the_expectation_over_all_draws_is_the_exact_gradient(game, agent, number):
    found = np.zeros(SIZE)
    acted = np.array([speaker == agent for speaker in SPEAKERS])
    for turn in np.flatnonzero(acted).tolist():
        chances, episodes, node_id = rollouts_of(game, turn, 1 if turn == 2 else number)
        rewards = np.array([game.reward[agent][episode] for episode in episodes])
        everywhere = np.broadcast_to(acted, node_id.shape)
        replies = credited_replies(node_id, everywhere, rewards, agent, compares_draws=True)
        groups = [f"{row}/{step}" for row, step in zip(replies.original, replies.step, strict=True)]
        advantage = group_advantages(
            torch.tensor(replies.reward), groups, baseline="leave_one_out", scale="none"
        ).advantage.tolist()
        num_draws = {name: groups.count(name) for name in groups[:9]}
        assert num_draws[f"0/{turn}"] == (2 if turn == 2 else 1 + number)
        for row, step, credit in zip(replies.row, replies.step, advantage, strict=True):
            if step == turn:
                prefix = episodes[row][:turn]
                weight = chances[row] / num_draws[f"0/{turn}"]
                found += weight * credit * game.score(prefix, episodes[row][turn])
    np.testing.assert_allclose(found, game.gradient(agent), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, 2])
def test_rewards_averaged_over_other_agents_redraws_give_the_exact_gradient(game, turn):
    agent = 1 - SPEAKERS[turn]
    chances, episodes, node_id = rollouts_of(game, turn, 1)
    rewards = np.array([game.reward[agent][episode] for episode in episodes])
    acted = np.broadcast_to([speaker == agent for speaker in SPEAKERS], node_id.shape)
    replies = credited_replies(node_id, acted, rewards, agent, compares_draws=False)
    found = sum(
        chances[row] * reward * game.score(episodes[row][:step], episodes[row][step])
        for row, step, _, reward in zip(*replies, strict=True)
    )
    np.testing.assert_allclose(found, game.gradient(agent), rtol=0, atol=1e-9)
    shared = replies.reward != rewards[replies.row]
    assert shared[replies.step < turn].any()
    assert not shared[replies.step > turn].any()


def test_replies_of_redrawn_rollouts_count_only_in_their_redrawn_turn():
    # Two originals of two agents; of the first, agent 0's turn in step 0 and 1's in step 1.
    node_id = np.array([[-1, -1, -1], [0, -1, -1], [-1, 1, -1], [-1, -1, -1]])
    reward = np.array([1.0, 2.0, 4.0, 8.0])
    everywhere = np.ones((4, 3), dtype=bool)
    assert original_rows(node_id).tolist() == [0, 0, 0, 3]
    drawn = credited_replies(node_id, everywhere, reward, 0, compares_draws=True)
    assert list(zip(drawn.row.tolist(), drawn.step.tolist(), strict=True)) == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (3, 0), (3, 1), (3, 2)),
    ]
    assert drawn.original.tolist() == [0, 0, 0, 0, 3, 3, 3]
    assert drawn.reward.tolist() == [1, 1, 1, 2, 8, 8, 8]
    # Agent 2's reply in step 0 is shared by all three, in step 1 by two, in step 2 by none.
    other = credited_replies(node_id, everywhere, reward, 2, compares_draws=False)
    assert other.row.tolist() == [0, 0, 0, 3, 3, 3]
    assert other.reward.tolist() == [7 / 3, 2.5, 1, 8, 8, 8]


@given(
    rewards=st.lists(st.integers(-100, 100), min_size=2, max_size=6),
    common=st.integers(-100, 100),
)
def test_credit_of_a_turn_sums_to_zero_and_ignores_what_its_draws_share(rewards, common):
    node_id = np.full((len(rewards), 1), -1)
    node_id[1:] = 0
    acted = np.ones(node_id.shape, dtype=bool)

    def credit(values):
        replies = credited_replies(node_id, acted, np.array(values), 0, compares_draws=True)
        names = [str(row) for row in replies.original]
        score = torch.tensor(replies.reward)
        return group_advantages(score, names, baseline="leave_one_out", scale="none").advantage

    found = credit(rewards)
    assert float(found.sum()) == pytest.approx(0, abs=1e-3)
    assert torch.allclose(found, credit([each + common for each in rewards]), atol=1e-3)
    others = (sum(rewards) - rewards[-1]) / (len(rewards) - 1)
    assert float(found[-1]) == pytest.approx(rewards[-1] - others, abs=1e-3)


@pytest.mark.parametrize("node_id", [[[0, -1]], [[-1, -1], [0, 1]]])
def test_rollouts_without_an_original_or_with_two_redrawn_turns_are_refused(node_id):
    with pytest.raises(DataError, match="redrawn turns, expected at most one"):
        original_rows(np.array(node_id))
