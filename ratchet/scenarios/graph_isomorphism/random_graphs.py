"""Random graphs in batches: Erdős–Rényi, degree-preserving edge switches, relabelling.

The raw material of the generator. All graphs of a batch have one size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SWITCH_TRIES = 64
"""Pairs of edges tried for one switch."""


def erdos_renyi(
    n: int, probabilities: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw graphs [N, n, n] in which every edge exists with the graph's own probability [N]."""
    draws = rng.random((len(probabilities), n, n)) < probabilities[:, None, None]
    upper = np.triu(draws, k=1)
    return (upper | upper.transpose(0, 2, 1)).astype(np.uint8)


def relabel(adjacency: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Rename the nodes of each graph of [N, n, n] by a random permutation of its own."""
    num_graphs, n, _ = adjacency.shape
    order = rng.random((num_graphs, n)).argsort(-1)
    rows = np.take_along_axis(adjacency, order[:, :, None], axis=1)
    return np.take_along_axis(rows, order[:, None, :], axis=2)


def complement(adjacency: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn edges into gaps and gaps into edges."""
    return (1 - adjacency - np.eye(adjacency.shape[-1], dtype=np.uint8)).astype(np.uint8)


def switch_edges(
    adjacency: NDArray[np.uint8],
    num_switches: NDArray[np.int64],
    matched: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Replace edges ab, cd by ac, bd, several times: no node's degree changes.

    Graphs [N, n, n] are left as they are. In each ``num_switches`` [N] are made, or fewer where no
    fitting edges were found. Where ``matched`` [N] is true, only those with deg b = deg c and deg a
    = deg d are: then no node changes the degrees of its neighbours either, and the two graphs pass
    two rounds of colour refinement.
    """
    result = adjacency.copy()
    dense = adjacency.sum((1, 2), dtype=np.int64) * 2 > adjacency.shape[-1] * (
        adjacency.shape[-1] - 1
    )
    # A switch of a graph is a switch of its complement; sparse graphs have more of them to find.
    result[dense] = complement(result[dense])
    for switch in range(int(num_switches.max(initial=0))):
        wanted = num_switches > switch
        nodes, found = _find_switch(result, matched, rng)
        index = np.flatnonzero(wanted & found)
        a, b, c, d = nodes[index].T
        for left, right, value in ((a, b, 0), (c, d, 0), (a, c, 1), (b, d, 1)):
            result[index, left, right] = value
            result[index, right, left] = value
    result[dense] = complement(result[dense])
    return result


def _find_switch(
    adjacency: NDArray[np.uint8], matched: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return nodes a, b, c, d [graph, 4] to switch, and where there are such."""
    num_graphs, n, _ = adjacency.shape
    degrees = adjacency.sum(-1, dtype=np.int64)
    num_edges = degrees.sum(-1)  # each edge counts twice, once per direction
    _, tails, heads = np.nonzero(adjacency)
    if not tails.size:
        return np.zeros((num_graphs, 4), dtype=np.int64), np.zeros(num_graphs, dtype=bool)
    first = num_edges.cumsum() - num_edges
    draws = rng.random((num_graphs, 2, SWITCH_TRIES)) * num_edges[:, None, None]
    picks = np.minimum(draws.astype(np.int64) + first[:, None, None], len(tails) - 1)
    a, b = tails[picks[:, 0]], heads[picks[:, 0]]
    c, d = tails[picks[:, 1]], heads[picks[:, 1]]
    taken = (adjacency | np.eye(n, dtype=np.uint8)).astype(bool)
    graph = np.arange(num_graphs)[:, None]
    fits = ~taken[graph, a, c] & ~taken[graph, b, d] & (num_edges > 0)[:, None]
    alike = (degrees[graph, b] == degrees[graph, c]) & (degrees[graph, a] == degrees[graph, d])
    fits &= alike | ~matched[:, None]
    best = fits.argmax(-1)
    nodes = np.stack([a, b, c, d], axis=-1)[np.arange(num_graphs), best]
    return nodes, fits.any(-1)
