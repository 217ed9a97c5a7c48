"""Where the generator's graphs come from, and where the pairs that it keeps go.

A graph belongs to the training or the test side by a hash that relabelling does not change, so
the sides share no graph, not even a relabelled one, however they are made.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.scenarios.graph_isomorphism.random_graphs import erdos_renyi
from ratchet.scenarios.graph_isomorphism.wl import class_keys

MAX_COPIES = 4
"""How often a non-isomorphic pair may come back with its graphs relabelled."""

MAX_DRAWS = 10_000
"""Draws of one graph before its size is said to be too small."""

REUSED = -1
"""The kind of isomorphic pairs whose graph is also in a non-isomorphic one."""


class GraphPool:
    """Random graphs of one side.

    It has the share (0, 1) of all graphs; the salt decides which. The ``last`` side has the upper
    end of the keys' range instead of the lower one.
    """

    def __init__(self, *, salt: int, share: float, last: bool) -> None:
        self.salt = salt
        self.share = share
        lowest = 1.0 - share if last else 0.0
        self._low, self._high = lowest, lowest + share

    def keys(self, adjacency: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Hash graphs; relabelled copies have the same key."""
        return class_keys(adjacency, salt=self.salt)

    def accepts(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which graphs belong to this side."""
        position = (keys >> np.uint64(11)).astype(np.float64) / 2.0**53
        return np.asarray((self._low <= position) & (position < self._high))

    def draw(
        self, n: int, probabilities: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """Draw one Erdős–Rényi graph of this side for each probability [N]: [N, n, n], keys [N].

        Raises
        ------
        DataError
            If no graph of that size is on this side.
        """
        graphs = np.zeros((len(probabilities), n, n), dtype=np.uint8)
        keys = np.zeros(len(probabilities), dtype=np.uint64)
        todo = np.arange(len(probabilities))
        for _ in range(MAX_DRAWS):
            if not todo.size:
                return graphs, keys
            draws = erdos_renyi(n, probabilities[todo], rng)
            draw_keys = self.keys(draws)
            ours = self.accepts(draw_keys)
            graphs[todo[ours]], keys[todo[ours]] = draws[ours], draw_keys[ours]
            todo = todo[~ours]
        raise DataError(
            f"graph_isomorphism: {MAX_DRAWS} draws of a graph with {n} nodes gave none of the"
            f" {self.share:.3g} of all graphs that belong to one side of train and test."
            " Add larger graph_sizes, or a test_size nearer to a half."
        )


class PairPool:
    """The pairs kept so far, by kind and cell (size and edge probability), without duplicates.

    ``counts`` [kind, cell] are their numbers.
    """

    def __init__(self, cells: list[tuple[int, float]], *, num_kinds: int) -> None:
        self.cells = cells
        self.counts: NDArray[np.int64] = np.zeros((num_kinds, len(cells)), np.int64)
        self._pairs: list[NDArray[np.uint8]] = []
        self._records: list[tuple[int, int, int]] = []
        self._seen: set[bytes] = set()
        self._copies: Counter[int] = Counter()

    def add(
        self,
        pairs: NDArray[np.uint8],
        scores: NDArray[np.int64],
        cells: NDArray[np.int64],
        pair_keys: NDArray[np.uint64],
        kind: int,
        quotas: NDArray[np.int64],
    ) -> None:
        """Keep those of the pairs [N, 2, n, n] that are new and still wanted.

        A pair (in either order) comes once only; a non-isomorphic one with other node labels at
        most ``MAX_COPIES`` times.
        """
        for pair, score, cell, key in zip(
            pairs, scores.tolist(), cells.tolist(), pair_keys.tolist(), strict=True
        ):
            wanted = self.counts[kind, cell] < quotas[kind, cell]
            if wanted and (score == 0 or self._copies[key] < MAX_COPIES) and self._is_new(pair):
                self._keep(pair, score, cell, kind)
                self.counts[kind, cell] += 1
                self._copies[key] += score > 0

    def add_reused(self, pair: NDArray[np.uint8], cell: int) -> bool:
        """Keep an isomorphic pair of a graph that is used elsewhere; return whether it is new."""
        if not self._is_new(pair[0]):
            return False
        self._keep(pair[0], 0, cell, REUSED)
        return True

    def gather(
        self,
    ) -> tuple[list[NDArray[np.uint8]], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return all pairs, their scores, cells and kinds."""
        records = np.array(self._records, dtype=np.int64).reshape(-1, 3)
        return list(self._pairs), records[:, 0], records[:, 1], records[:, 2]

    def _is_new(self, pair: NDArray[np.uint8]) -> bool:
        first, second = sorted(graph.tobytes() for graph in pair)
        return first + second not in self._seen

    def _keep(self, pair: NDArray[np.uint8], score: int, cell: int, kind: int) -> None:
        first, second = sorted(graph.tobytes() for graph in pair)
        self._seen.add(first + second)
        self._pairs.append(pair)
        self._records.append((score, cell, kind))
