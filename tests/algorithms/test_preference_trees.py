"""Expected rewards and preference pairs in trees, against a recursive implementation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.algorithms.preference_trees import (
    draw_pairs,
    expected_rewards,
    find_choices,
    find_nodes,
    positive_responses,
)
from ratchet.errors import DataError

STEPS = 4


@dataclass
class Branching:
    """Node of a tree: the rewards and acting agents of its step, and its children."""

    reward: float
    acts: bool
    children: list[Branching] = field(default_factory=list)
    number: int = -1

    def totals(self) -> list[float]:
        """Return the sum of rewards from this node on, for each leaf below it."""
        if not self.children:
            return [self.reward]
        return [self.reward + total for child in self.children for total in child.totals()]

    def nodes(self) -> list[Branching]:
        return [self, *(node for child in self.children for node in child.nodes())]


def branchings(depth: int) -> st.SearchStrategy[list[Branching]]:
    """Return all possible children of a node: up to three replies, with or without an agent."""
    rewards = st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0])
    if depth == 0:
        return st.just([])
    answer = st.tuples(rewards, branchings(depth - 1))
    return st.tuples(st.booleans(), st.lists(answer, min_size=0, max_size=3)).map(
        lambda drawn: [Branching(reward, drawn[0], inner) for reward, inner in drawn[1]]
    )


FORESTS = st.lists(branchings(STEPS).filter(bool), min_size=1, max_size=3)


def written(forest: list[list[Branching]]) -> tuple[np.ndarray, ...]:
    """Convert trees to branches of their leaves: node ids, trees, rewards, acting agents."""
    rows: list[tuple[int, list[Branching]]] = []
    numbers = iter(range(10**6))

    def walk(tree: int, branch: list[Branching], children: list[Branching]) -> None:
        for child in children:
            child.number = next(numbers) * 7 + 3
        for child in children:
            walk(tree, [*branch, child], child.children)
        if not children:
            rows.append((tree, branch))

    for tree, first in enumerate(forest):
        walk(tree, [], first)
    shape = (len(rows), STEPS)
    node_id, reward = np.full(shape, -1, np.int64), np.zeros(shape, np.float32)
    acts = np.zeros(shape, bool)
    for row, (_, branch) in enumerate(rows):
        for step, node in enumerate(branch):
            node_id[row, step], reward[row, step] = node.number, node.reward
            acts[row, step] = node.acts
    return node_id, np.array([tree for tree, _ in rows]), reward, acts


@given(FORESTS)
def test_expected_rewards_equal_a_recursive_computation(forest):
    node_id, tree, reward, _ = written(forest)
    nodes = find_nodes(node_id, tree)
    found = dict(zip(nodes.node.tolist(), expected_rewards(nodes, reward), strict=True))
    judged = {
        node.number: float(np.mean(node.totals()))
        for first in forest
        for child in first
        for node in child.nodes()
    }
    assert found == pytest.approx(judged)


@given(FORESTS, st.sampled_from([-0.5, 0.0, 0.3]), st.integers(0, 50))
def test_pairs_are_those_that_the_rule_allows(forest, mid_point, seed):
    node_id, tree, reward, acts_at = written(forest)
    nodes = find_nodes(node_id, tree)
    acts = acts_at[nodes.leaf, nodes.step]
    positive = positive_responses(expected_rewards(nodes, reward), mid_point)
    drawn = draw_pairs(nodes, positive, acts, np.random.default_rng(seed))
    pairs = list(zip(nodes.node[drawn[0]].tolist(), nodes.node[drawn[1]].tolist(), strict=True))

    allowed = []
    families = [first for first in forest]
    families += [n.children for first in forest for c in first for n in c.nodes() if n.children]
    for children in families:
        good = {c.number for c in children if np.mean(c.totals()) > mid_point}
        bad = {c.number for c in children} - good
        if children[0].acts and good and bad:
            allowed.append((good, bad))
    assert len(pairs) == len(allowed)
    for good, bad in allowed:
        assert sum(chosen in good and rejected in bad for chosen, rejected in pairs) == 1
    used = [node for pair in pairs for node in pair]
    assert len(used) == len(set(used))
    again = draw_pairs(nodes, positive, acts, np.random.default_rng(seed))
    np.testing.assert_array_equal(drawn, again)

    choices = find_choices(nodes, positive, acts)
    assert int(choices.has_both.sum()) == len(allowed)
    assert len(choices.parent) == sum(children[0].acts for children in families)


def test_golden_values_of_a_tree():
    """Two replies, each followed by two; the verifier is rewarded immediately for another query.

    Node 1 (reward .25) leads to 3 (1) and 4 (-1), node 2 to 5 (1), its only reply.
    """
    node_id = np.array([[1, 3], [1, 4], [2, 5]])
    reward = np.array([[0.25, 1], [0.25, -1], [0, 1]], np.float32)
    nodes = find_nodes(node_id, np.zeros(3, np.int64))
    assert nodes.node.tolist() == [1, 2, 3, 4, 5]
    assert nodes.num_leaves.tolist() == [2, 1, 1, 1, 1]
    assert expected_rewards(nodes, reward).tolist() == [0.25, 1, 1, -1, 1]
    positive = positive_responses(expected_rewards(nodes, reward), 0.5)
    good, bad = draw_pairs(nodes, positive, np.ones(5, bool), np.random.default_rng(0))
    assert sorted(zip(nodes.node[good].tolist(), nodes.node[bad].tolist(), strict=True)) == [
        (2, 1),
        (3, 4),
    ]


def test_a_reward_at_the_mid_point_is_not_positive():
    assert positive_responses(np.array([0.4, 0.5, 0.6]), 0.5).tolist() == [False, False, True]


def test_first_answers_of_different_trees_are_no_alternatives():
    nodes = find_nodes(np.array([[1], [2]]), np.array([0, 1]))
    good, _ = draw_pairs(nodes, np.array([True, False]), np.ones(2, bool), np.random.default_rng(0))
    assert len(good) == 0


@pytest.mark.parametrize(
    ("node_id", "message"),
    [
        ([[1, -1, 2]], "leaf 0 has a hole"),
        ([[1, 2], [3, 2]], "node 2 has two steps or two parents"),
        ([[1, 2], [2, 3]], "node 2 has two steps or two parents"),
    ],
)
def test_invalid_trees_are_refused(node_id, message):
    with pytest.raises(DataError, match=message):
        find_nodes(np.array(node_id), np.zeros(len(node_id), np.int64))
