"""Colour refinement against a slow reference, and class keys against relabelling."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest

from ratchet.scenarios.graph_isomorphism.generator import (
    complement,
    erdos_renyi,
    relabel,
    switch_edges,
)
from ratchet.scenarios.graph_isomorphism.wl import class_keys, wl_scores


def slow_score(first: np.ndarray, second: np.ndarray, max_rounds: int) -> int:
    """Refine with dictionaries, as the textbook does."""
    n = len(first)
    neighbours = [np.flatnonzero(row) for row in first]
    neighbours += [np.flatnonzero(row) + n for row in second]
    colours: list = [0] * (2 * n)
    for wl_round in range(1, max_rounds + 1):
        signatures = [
            (colours[i], tuple(sorted(colours[j] for j in neighbours[i]))) for i in range(2 * n)
        ]
        names = {signature: k for k, signature in enumerate(sorted(set(signatures)))}
        colours = [names[signature] for signature in signatures]
        if Counter(colours[:n]) != Counter(colours[n:]):
            return wl_round
    return max_rounds + 1


def random_pairs(n: int, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    first = erdos_renyi(n, rng.uniform(0.1, 0.9, count), rng)
    second = switch_edges(first, rng.integers(0, 4, count), rng.random(count) < 0.7, rng)
    independent = rng.random(count) < 0.2
    second[independent] = erdos_renyi(n, rng.uniform(0.1, 0.9, independent.sum()), rng)
    return np.stack([first, relabel(second, rng)], axis=1)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_scores_equal_those_of_the_slow_reference(n):
    pairs = random_pairs(n, 300, seed=n)
    expected = [slow_score(*pair, 5) for pair in pairs]
    assert wl_scores(pairs, max_rounds=5).tolist() == expected
    if n == 11:
        assert {1, 2, 3, 6} <= set(expected)


def test_scores_agree_with_networkx():
    pairs = random_pairs(9, 60, seed=1)
    scores = wl_scores(pairs, max_rounds=4)
    for pair, score in zip(pairs, scores, strict=True):
        graphs = [nx.from_numpy_array(graph) for graph in pair]
        hashes = [nx.weisfeiler_lehman_subgraph_hashes(g, iterations=4) for g in graphs]
        told_apart = [
            Counter(h[k] for h in hashes[0].values()) != Counter(h[k] for h in hashes[1].values())
            for k in range(4)
        ]
        assert score == (told_apart.index(True) + 1 if True in told_apart else 5)


def test_padding_with_absent_nodes_changes_no_score():
    pairs = random_pairs(7, 200, seed=2)
    padded = np.zeros((200, 2, 10, 10), dtype=np.uint8)
    padded[:, :, :7, :7] = pairs
    mask = np.zeros((200, 2, 10), dtype=bool)
    mask[:, :, :7] = True
    assert np.array_equal(wl_scores(padded, mask, max_rounds=5), wl_scores(pairs, max_rounds=5))


def test_an_absent_node_is_no_isolated_node():
    graphs = np.zeros((1, 2, 4, 4), dtype=np.uint8)
    mask = np.array([[[True, True, True, True], [True, True, True, False]]])
    assert wl_scores(graphs, mask, max_rounds=3).tolist() == [1]
    assert wl_scores(graphs, max_rounds=3).tolist() == [4]


def test_hexagon_and_two_triangles_are_never_told_apart():
    hexagon = nx.to_numpy_array(nx.cycle_graph(6), dtype=np.uint8)
    triangles = nx.to_numpy_array(
        nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3)), dtype=np.uint8
    )
    assert wl_scores(np.stack([hexagon, triangles])[None], max_rounds=9).tolist() == [10]


def test_keys_survive_relabelling_and_depend_on_the_salt():
    rng = np.random.default_rng(0)
    graphs = erdos_renyi(9, np.full(200, 0.5), rng)
    keys = class_keys(graphs, salt=1)
    assert np.array_equal(keys, class_keys(relabel(graphs, rng), salt=1))
    assert not np.array_equal(keys, class_keys(graphs, salt=2))
    assert len(np.unique(keys)) > 190


@pytest.mark.parametrize("matched", [False, True])
def test_switches_keep_every_degree(matched):
    rng = np.random.default_rng(3)
    for p in (0.2, 0.5, 0.8):
        graphs = erdos_renyi(10, np.full(300, p), rng)
        before = graphs.copy()
        switched = switch_edges(graphs, np.full(300, 3), np.full(300, matched), rng)
        assert np.array_equal(graphs, before)
        assert np.array_equal(switched.sum(-1), graphs.sum(-1))
        assert np.array_equal(switched, switched.transpose(0, 2, 1))
        assert not switched.diagonal(axis1=1, axis2=2).any()
        assert (switched != graphs).any((1, 2)).mean() > 0.3
        scores = wl_scores(np.stack([graphs, switched], 1), max_rounds=5)
        assert (scores >= (3 if matched else 2)).all()


def test_complement_and_empty_graphs():
    rng = np.random.default_rng(4)
    graphs = erdos_renyi(6, np.full(20, 0.3), rng)
    assert np.array_equal(complement(complement(graphs)), graphs)
    empty = np.zeros((3, 6, 6), dtype=np.uint8)
    assert not switch_edges(empty, np.full(3, 2), np.zeros(3, bool), rng).any()
