"""Generator of graph pairs: half of them isomorphic, the others labelled by difficulty.

Random pairs are nearly always distinguished by their degrees. Pairs of score 1 are therefore
sampled at random, and candidates for higher scores are derived from a random graph by one to three
degree-preserving edge switches and a relabelling; their score is computed exactly, and candidates
that do not fit are rejected. For scores of 3 and more, switches also preserve the degrees of each
node's neighbours (see :func:`switch_edges`). If a size and density has too few pairs of a score
within a bounded number of candidates (sparse graphs with 7 nodes have almost none of score 3), the
missing pairs are taken from other sizes and densities.

A graph belongs to the training, validation or test side by a hash that is invariant to relabelling,
so the sides share no graph, not even a relabelled one. All graphs of a batch have the same size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.scenarios.graph_isomorphism.wl import class_keys, wl_scores

SWITCH_TRIES = 64
"""Pairs of edges tried for one switch."""

MAX_COPIES = 4
"""Maximal number of relabelled copies of a non-isomorphic pair."""
MAX_DRAWS = 10_000
"""Number of samples of one graph before its size is reported as too small."""
REUSED = -1
"""The kind of isomorphic pairs whose graph is also in a non-isomorphic one."""
MAX_SWITCHES = 3
BATCH = 4096
"""Maximal number of candidates of one size and density in a batch."""
MAX_BATCHES = 16
"""Batches of candidates for one size and one score; a batch without a find is the last one too."""


def erdos_renyi(
    n: int, probabilities: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Sample graphs [N, n, n] in which every edge exists with the graph's own probability [N]."""
    draws = rng.random((len(probabilities), n, n)) < probabilities[:, None, None]
    upper = np.triu(draws, k=1)
    return (upper | upper.transpose(0, 2, 1)).astype(np.uint8)


def relabel(adjacency: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Rename the nodes of each graph of [N, n, n] by a separate random permutation."""
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

    Graphs [N, n, n] are not modified. Each undergoes ``num_switches`` [N] switches, or fewer if no
    suitable edges were found. Where ``matched`` [N] is true, switches require deg b = deg c and deg
    a = deg d: then the degrees of each node's neighbours are preserved as well, and the two graphs
    are equal in two rounds of colour refinement.
    """
    result = adjacency.copy()
    dense = adjacency.sum((1, 2), dtype=np.int64) * 2 > adjacency.shape[-1] * (
        adjacency.shape[-1] - 1
    )
    # A switch of a graph is a switch of its complement; sparse graphs have more of them to find.
    result[dense] = complement(result[dense])
    for switch in range(int(num_switches.max(initial=0))):
        pending = num_switches > switch
        nodes, possible = _find_switch(result, matched, rng)
        index = np.flatnonzero(pending & possible)
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
    occupied = (adjacency | np.eye(n, dtype=np.uint8)).astype(bool)
    graph = np.arange(num_graphs)[:, None]
    fits = ~occupied[graph, a, c] & ~occupied[graph, b, d] & (num_edges > 0)[:, None]
    alike = (degrees[graph, b] == degrees[graph, c]) & (degrees[graph, a] == degrees[graph, d])
    fits &= alike | ~matched[:, None]
    best = fits.argmax(-1)
    nodes = np.stack([a, b, c, d], axis=-1)[np.arange(num_graphs), best]
    return nodes, fits.any(-1)


class GraphPool:
    """Random graphs of one side: those whose salted key, from 0 to 1, is in a range."""

    def __init__(self, *, salt: int, low: float, high: float) -> None:
        self.salt = salt
        self._low, self._high = low, high

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
        """Sample one Erdős–Rényi graph of this side for each probability [N]: [N, n, n], keys [N].

        Raises DataError if no graph of that size is on this side.
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
            f" {self._high - self._low:.3g} of all graphs that belong to one side of the data."
            " Add larger graph_sizes, or increase the smaller one of test_size and"
            " validation.size."
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
        """Keep pairs [N, 2, n, n] that are new and still needed.

        A pair (in either order) comes once only; a non-isomorphic one with other node labels at
        most ``MAX_COPIES`` times.
        """
        for pair, score, cell, key in zip(
            pairs, scores.tolist(), cells.tolist(), pair_keys.tolist(), strict=True
        ):
            has_room = self.counts[kind, cell] < quotas[kind, cell]
            if has_room and (score == 0 or self._copies[key] < MAX_COPIES) and self._is_new(pair):
                self._keep(pair, score, cell, kind)
                self.counts[kind, cell] += 1
                self._copies[key] += score > 0

    def add_reused(self, pair: NDArray[np.uint8], cell: int) -> bool:
        """Keep an isomorphic pair of a graph in use; return whether the pair is new."""
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


NEW_ISOMORPHIC, SCORE_1, SCORE_2, SCORE_HIGHER = range(4)
"""Kinds of pairs: quotas are kept for each."""


@dataclass(frozen=True)
class PairMix:
    """Composition of a set of pairs.

    ``uniform`` spreads every kind of pair as evenly as possible over sizes and probabilities;
    otherwise each pair's size and probability are sampled. ``balanced`` takes all graphs of
    isomorphic pairs from non-isomorphic ones, so that a single graph carries no information about
    the label.
    """

    num_pairs: int
    prop_non_isomorphic: float
    prop_score_1: float
    prop_score_2: float
    max_wl_rounds: int
    graph_sizes: tuple[int, ...]
    edge_probabilities: tuple[float, ...]
    uniform: bool = True
    balanced: bool = False

    def counts(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of pairs: reused isomorphic, new isomorphic, score 1, 2, higher."""
        negatives = round(self.num_pairs * self.prop_non_isomorphic)
        score_1 = round(negatives * self.prop_score_1)
        score_2 = min(round(negatives * self.prop_score_2), negatives - score_1)
        positives = self.num_pairs - negatives
        reused = positives if self.balanced else positives // 2 if negatives else 0
        new = positives - reused
        return reused, new, score_1, score_2, negatives - score_1 - score_2


@dataclass(frozen=True)
class GraphPairs:
    """A set of graph pairs. ``n`` is the largest size; smaller graphs are padded with absent nodes.

    ``adjacency`` is [N, 2, n, n], the others [N]. ``wl_score`` is 0 for isomorphic pairs, else the
    refinement round that distinguishes the pair.
    """

    adjacency: NDArray[np.uint8]
    num_nodes: NDArray[np.int64]
    edge_probability: NDArray[np.float64]
    wl_score: NDArray[np.int64]


def generate_pairs(mix: PairMix, pool: GraphPool, rng: np.random.Generator) -> GraphPairs:
    """Create a shuffled set of distinct graph pairs, of the pool's side."""
    cells = [(n, p) for n in mix.graph_sizes for p in mix.edge_probabilities]
    reused, *kinds = mix.counts()
    quotas = np.stack([_spread(count, len(cells), mix.uniform, rng) for count in kinds])
    pair_pool = PairPool(cells, num_kinds=len(kinds))
    _fill(mix, pool, pair_pool, quotas, rng)
    _fill_from_elsewhere(mix, pool, pair_pool, quotas, rng)
    _reuse_graphs(pair_pool, reused, rng, evenly=mix.balanced)
    return _assemble(pair_pool, max(mix.graph_sizes), rng)


def _spread(
    count: int, num_cells: int, uniform: bool, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Divide ``count`` pairs among the cells."""
    if not uniform:
        return rng.multinomial(count, np.full(num_cells, 1 / num_cells)).astype(np.int64)
    quota = np.full(num_cells, count // num_cells, dtype=np.int64)
    quota[rng.permutation(num_cells)[: count % num_cells]] += 1
    return quota


def _fill(
    mix: PairMix,
    pool: GraphPool,
    pair_pool: PairPool,
    quotas: NDArray[np.int64],
    rng: np.random.Generator,
) -> None:
    """Find pairs until the quotas [kind, cell] are met or candidates have run out."""
    num_p = len(mix.edge_probabilities)
    bounds = range(0, len(pair_pool.cells) + 1, num_p)
    for kind in range(quotas.shape[0]):
        for start, stop in pairwise(bounds):  # the cells of one size
            finds = np.ones(stop - start, dtype=np.int64)
            for _ in range(MAX_BATCHES):
                missing = quotas[kind, start:stop] - pair_pool.counts[kind, start:stop]
                missing = np.where(finds > 0, missing.clip(0), 0)
                if not missing.any():
                    break
                before = pair_pool.counts[kind, start:stop].copy()
                cells = start + np.repeat(np.arange(num_p), _batch_sizes(missing, kind))
                _propose(mix, pool, pair_pool, quotas, kind, cells, rng)
                finds = pair_pool.counts[kind, start:stop] - before


def _batch_sizes(missing: NDArray[np.int64], kind: int) -> NDArray[np.int64]:
    """Return the number of candidates to make in each cell, given the pairs that are missing."""
    easy = {NEW_ISOMORPHIC: (2, 8), SCORE_1: (2, 8), SCORE_2: (4, 64)}
    factor, least = easy.get(kind, (16, 512))
    sizes = np.where(missing > 0, np.maximum(missing * factor, least), 0)
    return np.minimum(sizes, BATCH)


def _propose(
    mix: PairMix,
    pool: GraphPool,
    pair_pool: PairPool,
    quotas: NDArray[np.int64],
    kind: int,
    cells: NDArray[np.int64],
    rng: np.random.Generator,
) -> None:
    """Create one candidate per entry of ``cells`` (all of one size), and keep suitable ones."""
    n = pair_pool.cells[int(cells[0])][0]
    probabilities = np.array([pair_pool.cells[cell][1] for cell in cells])
    first, first_keys = pool.draw(n, probabilities, rng)
    if kind == NEW_ISOMORPHIC:
        pairs = np.stack([first, relabel(first, rng)], axis=1)
        pair_pool.add(pairs, np.zeros(len(cells), np.int64), cells, first_keys, kind, quotas)
        return
    if kind == SCORE_1:
        second, _ = pool.draw(n, probabilities, rng)
    else:
        switches = rng.integers(1, MAX_SWITCHES + 1, len(cells))
        matched = np.full(len(cells), kind == SCORE_HIGHER)
        second = relabel(switch_edges(first, switches, matched, rng), rng)
    pairs = np.stack([first, second], axis=1)
    swapped = rng.random(len(pairs)) < 0.5  # else the switched graph would always come second
    pairs[swapped] = pairs[swapped, ::-1]
    scores = wl_scores(pairs, max_rounds=mix.max_wl_rounds)
    low, high = {SCORE_1: (1, 1), SCORE_2: (2, 2)}.get(kind, (3, mix.max_wl_rounds))
    keep = np.flatnonzero((low <= scores) & (scores <= high))
    second_keys = pool.keys(second[keep])
    ours = pool.accepts(second_keys)
    keep, second_keys = keep[ours], second_keys[ours]
    pair_keys = first_keys[keep] + second_keys  # wraps around; the same in either order
    pair_pool.add(pairs[keep], scores[keep], cells[keep], pair_keys, kind, quotas)


def _fill_from_elsewhere(
    mix: PairMix,
    pool: GraphPool,
    pair_pool: PairPool,
    quotas: NDArray[np.int64],
    rng: np.random.Generator,
) -> None:
    """Fill missing pairs of some cells from other cells, several times if necessary."""
    for _ in range(8):
        missing = (quotas - pair_pool.counts).clip(0)
        if not missing.any():
            return
        for kind in range(quotas.shape[0]):
            lack = int(missing[kind].sum())
            rich = np.flatnonzero((missing[kind] == 0) & (pair_pool.counts[kind] > 0))
            if lack and rich.size:
                quotas[kind] = pair_pool.counts[kind]
                quotas[kind, rich] += _spread(lack, rich.size, True, rng)
        _fill(mix, pool, pair_pool, quotas, rng)
    kinds = ("isomorphic", "WL score 1", "WL score 2", f"WL score 3 to {mix.max_wl_rounds}")
    lacks = ", ".join(
        f"{count} of {kind}"
        for kind, count in zip(kinds, (quotas - pair_pool.counts).clip(0).sum(1), strict=True)
        if count
    )
    raise DataError(
        f"graph_isomorphism: could not find enough graph pairs: {lacks} are missing with"
        f" graph_sizes={mix.graph_sizes}, edge_probabilities={mix.edge_probabilities}. Add larger"
        " sizes, ask for fewer pairs, or raise prop_score_1 and prop_score_2."
    )


def _reuse_graphs(
    pair_pool: PairPool, count: int, rng: np.random.Generator, *, evenly: bool = False
) -> None:
    """Add isomorphic pairs: graphs of the non-isomorphic pairs with relabelled copies.

    ``evenly`` takes a graph of each pair before a second one of any.
    """
    pairs, _, cells, kinds = pair_pool.gather()
    index = np.flatnonzero(kinds != NEW_ISOMORPHIC)
    if not count or not index.size:
        return
    source = np.stack([np.repeat(index, 2), np.tile([0, 1], index.size)], axis=1)
    source = source[rng.permutation(len(source))]
    # Take from the pairs or cells in turn, so that this part is spread over them as its source is.
    groups = source[:, 0] if evenly else cells[source[:, 0]]
    source = source[np.argsort(_rank_within(groups), kind="stable")]
    added, position = 0, 0
    while added < count:
        pair, member = source[position % len(source)]
        first = pairs[pair][member][None]
        both = np.stack([first, relabel(first, rng)], axis=1)
        added += pair_pool.add_reused(both, int(cells[pair]))
        position += 1
        if position > 20 * (count + len(source)):
            raise DataError(
                f"graph_isomorphism: {count - added} distinct isomorphic pairs are missing; the"
                " graphs are too small. Add larger graph_sizes or reduce num_pairs."
            )


def _rank_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the members of each group 0, 1, 2 … in order of appearance."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(groups)])
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return ranks


def _assemble(pair_pool: PairPool, n_max: int, rng: np.random.Generator) -> GraphPairs:
    """Pad and shuffle."""
    pairs, scores, cells, _ = pair_pool.gather()
    adjacency = np.zeros((len(pairs), 2, n_max, n_max), dtype=np.uint8)
    sizes = np.array([n for n, _ in pair_pool.cells], dtype=np.int64)[cells]
    for position, pair in enumerate(pairs):
        n = pair.shape[-1]
        adjacency[position, :, :n, :n] = pair
    order = rng.permutation(len(pairs))
    probabilities = np.array([p for _, p in pair_pool.cells])[cells]
    return GraphPairs(adjacency[order], sizes[order], probabilities[order], scores[order])
