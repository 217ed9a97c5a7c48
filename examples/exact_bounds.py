"""How right a verifier of few Weisfeiler–Leman rounds can be: alone, and with one question.

The verifier marks a node of the first graph, the prover one of the second; refinement starts with
the two in a colour of their own. Isomorphic pairs then look equal after a right answer. Of the
others those are lost for which some answer, of all there are, makes the graphs look equal: so this
is what a verifier can be sure of, whatever the prover's skill and will.

Run it:  python examples/exact_bounds.py experiments/graph_isomorphism_protocols.yaml
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets
from ratchet.scenarios.graph_isomorphism.wl import wl_scores


@dataclass(frozen=True)
class Bounds:
    """Accuracies from 0 to 1: with no question, one about any node, and one about the best."""

    alone: float
    random_question: float
    best_question: float


def exact_bounds(file: str, *, dataset: str = "test") -> Bounds:
    """Compute what an experiment's verifier can reach on a dataset by refinement alone."""
    hyper_params = load_experiment(file).hyper_params
    rounds = hyper_params.agents["verifier"].num_gnn_layers
    pairs = build_graph_datasets(hyper_params)[dataset]
    adjacency, present, y = (pairs[name].numpy() for name in ("adjacency", "node_mask", "y"))
    alike = wl_scores(adjacency, present, max_rounds=rounds) > rounds
    open_ones = alike & (y == 0)
    fooled = _fooled(adjacency[open_ones], present[open_ones], rounds)
    by_pair = [pair[nodes] for pair, nodes in zip(fooled, present[open_ones, 0], strict=True)]
    return Bounds(
        alone=1 - open_ones.mean(),
        random_question=1 - sum(each.mean() for each in by_pair) / len(y),
        best_question=1 - sum(each.all() for each in by_pair) / len(y),
    )


def _fooled(
    adjacency: NDArray[np.uint8], present: NDArray[np.bool_], rounds: int
) -> NDArray[np.bool_]:
    """Whether some answer to a question makes a pair's graphs look equal: [pair, question]."""
    num_pairs, _, n, _ = adjacency.shape
    fooled = np.zeros((num_pairs, n), dtype=bool)
    for question, answer in itertools.product(range(n), repeat=2):
        marks = np.zeros(present.shape, dtype=np.int64)
        marks[:, 0, question] = 1
        marks[:, 1, answer] = 1
        alike = wl_scores(adjacency, present, max_rounds=rounds, marks=marks) > rounds
        fooled[:, question] |= alike & present[:, 1, answer]
    return fooled


if __name__ == "__main__":
    for name, value in vars(exact_bounds(*sys.argv[1:])).items():
        print(f"{name.replace('_', ' ')}: {value:.1%}")
