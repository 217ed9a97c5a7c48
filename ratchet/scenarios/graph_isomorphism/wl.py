"""Colour refinement (1-WL) on batches of graph pairs: exact scores, and keys of graph classes.

The generator labels and splits its pairs with these. NumPy only; every value is exact or, where
hashes are used, errs on the safe side.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = "NDArray[np.floating[Any]]"

CHUNK = 1024
"""Number of pairs in a batch: small enough for the processor's cache."""

KEY_ROUNDS = 4
"""Refinement rounds behind a class key. Fewer rounds make coarser classes, never wrong ones."""


def wl_scores(
    adjacency: NDArray[np.uint8],
    node_mask: NDArray[np.bool_] | None = None,
    *,
    max_rounds: int,
    marks: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the refinement round, int64 [N], that distinguishes the two graphs of each pair.

    It is 1 … ``max_rounds``, or ``max_rounds + 1`` if no round distinguishes the pair. A
    distinguished pair is not isomorphic. All nodes start with one colour; in each round nodes keep
    the same colour if they have the same number of neighbours of every colour. Round 1 compares
    degrees. Both graphs are refined together, as one disjoint union. Exact: colours are classes of
    equal counts, no hashes.

    Adjacency [N, 2, n, n] are symmetric matrices of zeros and ones with an empty diagonal.
    ``node_mask`` [N, 2, n] marks existing nodes (default: all); absent ones must have no edges.
    Nodes with different ``marks`` [N, 2, n] start with different colours.
    """
    num_pairs, _, n, _ = adjacency.shape
    if node_mask is None:
        node_mask = np.ones((num_pairs, 2, n), dtype=bool)
    if marks is None:
        marks = np.zeros((num_pairs, 2, n), dtype=np.int64)
    scores = np.empty(num_pairs, dtype=np.int64)
    for start in range(0, num_pairs, CHUNK):
        part = slice(start, start + CHUNK)
        scores[part] = _score_chunk(adjacency[part], node_mask[part], marks[part], max_rounds)
    return scores


def _score_chunk(
    adjacency: NDArray[np.uint8],
    node_mask: NDArray[np.bool_],
    marks: NDArray[np.int64],
    max_rounds: int,
) -> NDArray[np.int64]:
    num_pairs, _, n, _ = adjacency.shape
    # Every number below is at most 4 n^4, which float32 holds exactly up to n = 45.
    edges: Counts = adjacency.astype(np.float32) if n <= 45 else adjacency.astype(np.float64)
    present = node_mask.reshape(num_pairs, 2 * n)
    colours = marks.reshape(num_pairs, 2 * n)
    same = present[:, :, None] & present[:, None, :]
    same &= colours[:, :, None] == colours[:, None, :]
    scores = np.full(num_pairs, max_rounds + 1, dtype=np.int64)
    left = np.arange(num_pairs)
    for wl_round in range(1, max_rounds + 1):
        refined = _refine(edges, same)
        apart = (refined[:, :, :n].sum(-1) != refined[:, :, n:].sum(-1)).any(-1)
        scores[left[apart]] = wl_round
        go_on = ~apart & (refined != same).any((1, 2))
        left, edges, same = left[go_on], edges[go_on], refined[go_on]
        if not left.size:
            break
    return scores


def _refine(edges: Counts, same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Refine ``same`` [pair, 2n, 2n] (node i has node j's colour) by one round."""
    num_pairs, _, n, _ = edges.shape
    colours: Counts = same.reshape(num_pairs, 2, n, 2 * n).astype(edges.dtype)
    # counts[i, k]: neighbours of i that have k's colour. Rows are equal iff their squared
    # distance, a whole number, is zero.
    counts = (edges @ colours).reshape(num_pairs, 2 * n, 2 * n)
    products = counts @ counts.transpose(0, 2, 1)
    squares = np.einsum("bii->bi", products)
    equal: NDArray[np.bool_] = squares[:, :, None] + squares[:, None, :] == 2 * products
    return same & equal


def class_keys(
    adjacency: NDArray[np.uint8], *, salt: int, rounds: int = KEY_ROUNDS
) -> NDArray[np.uint64]:
    """Hash graphs [N, n, n] such that relabelled copies have the same key: uint64 [N].

    The key is a hash of the colours after some refinement rounds, so isomorphic graphs agree.
    Graphs that refinement can't distinguish agree too, so a split by keys never separates
    isomorphic graphs. Another salt gives unrelated keys.
    """
    num_graphs, n, _ = adjacency.shape
    edges = adjacency.astype(bool)
    zero = np.uint64(0)
    start = _mix(np.array([salt & (2**64 - 1)], dtype=np.uint64) + np.uint64(n))
    colours = np.broadcast_to(start, (num_graphs, n))
    for _ in range(rounds):
        neighbours = np.where(edges, _mix(colours)[:, None, :], zero).sum(-1, dtype=np.uint64)
        colours = _mix(colours * np.uint64(0x9E3779B97F4A7C15) + neighbours)
    return _mix(_mix(colours).sum(-1, dtype=np.uint64))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit words (the finaliser of SplitMix64; Steele et al. 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
