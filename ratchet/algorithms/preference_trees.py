"""Trees of rollouts: expected rewards from the leaves up, and pairs to prefer one from.

Pure functions on NumPy arrays. A rollout is a leaf, written as its branch: one node for each
step that was played. Branches of one tree share the nodes they have in common. Shapes: ``N``
leaves, ``T`` steps, ``M`` nodes, ``P`` pairs. Source: Motwani et al., MALT (2024), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError

Indices: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]

NO_NODE = -1


@dataclass(frozen=True)
class TreeNodes:
    """The nodes of all trees, each once; a node is what was answered at one step.

    Attributes
    ----------
    node
        Their ids in rising order, int64[M].
    parent
        Identifies the node or tree that each continues, int64[M]: the same for all children of one
        node, and for all first nodes of one tree.
    step
        At which step each was played, int64[M].
    leaf
        The first leaf whose branch has it, int64[M].
    num_leaves
        How many leaves are below it, itself included, int64[M].
    played
        Where branches have a node, bool[N, T].
    node_row
        Of each such (leaf, step) in turn, its node's row in the arrays above.
    """

    node: Indices
    parent: Indices
    step: Indices
    leaf: Indices
    num_leaves: Indices
    played: Flags
    node_row: Indices

    def __len__(self) -> int:
        return len(self.node)


def find_nodes(node_id: Indices, tree: Indices) -> TreeNodes:
    """Find the nodes of trees that are written as the branches of their leaves.

    Parameters
    ----------
    node_id
        The node of each leaf's branch at each step, −1 where none was played, int64[N, T].
    tree
        Which tree each leaf belongs to, int64[N], from 0.
    """
    played = node_id != NO_NODE
    if bool((played[:, 1:] & ~played[:, :-1]).any()):
        leaf = int(np.flatnonzero((played[:, 1:] & ~played[:, :-1]).any(axis=1))[0])
        raise DataError(f"tree: the branch of leaf {leaf} has a hole: {node_id[leaf].tolist()}.")
    root = -2 - tree.astype(np.int64)
    parents = np.concatenate([root[:, None], node_id[:, :-1]], axis=1)[played]
    leaves, steps = np.nonzero(played)
    nodes, first, inverse, counts = np.unique(
        node_id[played], return_index=True, return_inverse=True, return_counts=True
    )
    tree_nodes = TreeNodes(
        node=nodes.astype(np.int64),
        parent=parents[first],
        step=steps[first].astype(np.int64),
        leaf=leaves[first].astype(np.int64),
        num_leaves=counts.astype(np.int64),
        node_row=inverse.reshape(-1).astype(np.int64),
        played=played,
    )
    astray = (tree_nodes.parent[tree_nodes.node_row] != parents) | (
        tree_nodes.step[tree_nodes.node_row] != steps
    )
    if bool(astray.any()):
        node = int(node_id[played][astray][0])
        raise DataError(f"tree: node {node} has two steps or two parents, expected one of each.")
    return tree_nodes


def expected_rewards(nodes: TreeNodes, reward: Floats) -> npt.NDArray[np.float64]:
    """Return an agent's expected reward at each node, float64[M].

    That is the mean, over the leaves below the node, of the sum of the agent's rewards from
    the node's own step to the end of the leaf's branch. Rewards before it are no matter.

    Parameters
    ----------
    reward
        The agent's reward at each step, float[N, T].
    """
    earned = np.where(nodes.played, reward.astype(np.float64), 0.0)
    to_come = np.cumsum(earned[:, ::-1], axis=1)[:, ::-1]
    totals = np.bincount(nodes.node_row, weights=to_come[nodes.played], minlength=len(nodes))
    return totals / np.maximum(nodes.num_leaves, 1)


def positive_responses(expected: Floats, mid_point: float) -> Flags:
    """Return which responses are good, bool[M]: expected reward above the mid-point."""
    return expected > mid_point


@dataclass(frozen=True)
class Choices:
    """The places where an agent answered in more than one way.

    Attributes
    ----------
    parent
        What was answered to, int64[K], as in :class:`TreeNodes`.
    step
        At which step, int64[K].
    has_both
        Whether there are both good and bad responses, bool[K].
    """

    parent: Indices
    step: Indices
    has_both: Flags


def find_choices(nodes: TreeNodes, positive: Flags, acts: Flags) -> Choices:
    """Find an agent's decision points, and flag those with both good and bad answers.

    Parameters
    ----------
    nodes
        From :func:`find_nodes`.
    positive
        Which nodes are good for the agent, bool[M].
    acts
        At which nodes it acts, bool[M].
    """
    parent, first, inverse = np.unique(nodes.parent[acts], return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    good = np.bincount(inverse, weights=positive[acts], minlength=len(parent))
    bad = np.bincount(inverse, weights=~positive[acts], minlength=len(parent))
    return Choices(parent, nodes.step[acts][first], (good > 0) & (bad > 0))


def draw_pairs(
    nodes: TreeNodes, positive: Flags, acts: Flags, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Draw a good and a bad response wherever an agent answered in both ways.

    One pair for each such place, hence no node is used twice.

    Parameters
    ----------
    nodes, positive, acts
        As in :func:`find_choices`.
    generator
        Draws, place after place in the order of their numbers.

    Returns
    -------
    tuple[int64[P], int64[P]]
        The rows in ``nodes`` of the good and of the bad responses.
    """
    rows = np.flatnonzero(acts)
    rows = rows[np.argsort(nodes.parent[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(nodes.parent[rows], prepend=np.nan))
    pairs = []
    for responses in np.split(rows, starts[1:]):
        good, bad = responses[positive[responses]], responses[~positive[responses]]
        if len(good) and len(bad):
            pairs.append((generator.choice(good), generator.choice(bad)))
    drawn = np.array(pairs, np.int64).reshape(-1, 2)
    return drawn[:, 0], drawn[:, 1]
