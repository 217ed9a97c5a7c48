"""Exact accuracies of simple decision rules for a verifier of few Weisfeiler–Leman rounds.

Without a prover, the rule accepts every pair that the verifier's rounds do not distinguish. With
a prover, the verifier marks a node of the first graph and the prover a node of the second.
Refinement starts with these two in a separate colour, and the rule again accepts pairs that look
alike. The prover answers correctly on isomorphic pairs and as deceptively as possible on others.

The values are reference values, not bounds. Trained verifiers can exceed them: some questions are
better than others, and in unbalanced data sizes and degrees carry information about the label.

Run it:  python examples/exact_bounds.py [experiments/graph_isomorphism_help.yaml]
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
class ExactAccuracies:
    """Accuracies (0 to 1) of accepting pairs that look alike, by type of question.

    Attributes
    ----------
    accept_if_alike
        No question.
    random_question
        One question about a uniformly random node.
    most_frequent_colour
        One question about a random node of the largest colour class after the verifier's rounds.
    middle_degree
        One question about a node whose degree is closest to half of the other nodes.
    two_random_questions
        Two questions about independent random nodes, each refined separately.
    best_question
        One question about a node for which no answer deceives, if the pair has such a node.
    """

    accept_if_alike: float
    random_question: float
    most_frequent_colour: float
    middle_degree: float
    two_random_questions: float
    best_question: float


def exact_accuracies(file: str, *, dataset: str = "test") -> ExactAccuracies:
    """Compute the accuracy of each rule on a dataset of an experiment."""
    hyper_params = load_experiment(file).hyper_params
    rounds = hyper_params.agents["verifier"].num_gnn_layers
    pairs = build_graph_datasets(hyper_params)[dataset]
    adjacency, present, y = (pairs[name].numpy() for name in ("adjacency", "node_mask", "y"))
    undecided = (wl_scores(adjacency, present, max_rounds=rounds) > rounds) & (y == 0)
    adjacency, present = adjacency[undecided], present[undecided]
    deceived = _deceived(adjacency, present, rounds)
    nodes = present[:, 0]

    def deceived_share(questions: NDArray[np.bool_]) -> NDArray[np.float64]:
        share: NDArray[np.float64] = (deceived & questions).sum(-1) / questions.sum(-1)
        return share

    def accuracy(deceived_pairs: NDArray[np.float64]) -> float:
        return 1 - float(deceived_pairs.sum()) / len(y)

    at_random = deceived_share(nodes)
    return ExactAccuracies(
        accept_if_alike=accuracy(np.ones(len(nodes))),
        random_question=accuracy(at_random),
        most_frequent_colour=accuracy(
            deceived_share(_most_frequent_colour(adjacency[:, 0], nodes, rounds))
        ),
        middle_degree=accuracy(deceived_share(_middle_degree(adjacency[:, 0], nodes))),
        two_random_questions=accuracy(at_random**2),
        best_question=accuracy(np.floor(at_random)),
    )


def _deceived(
    adjacency: NDArray[np.uint8], present: NDArray[np.bool_], rounds: int
) -> NDArray[np.bool_]:
    """Return whether some answer to a question makes a pair look alike: [pair, question]."""
    num_pairs, _, n, _ = adjacency.shape
    deceived = np.zeros((num_pairs, n), dtype=bool)
    for question, answer in itertools.product(range(n), repeat=2):
        marks = np.zeros(present.shape, dtype=np.int64)
        marks[:, 0, question] = 1
        marks[:, 1, answer] = 1
        alike = wl_scores(adjacency, present, max_rounds=rounds, marks=marks) > rounds
        deceived[:, question] |= alike & present[:, 1, answer]
    return deceived


def _most_frequent_colour(
    adjacency: NDArray[np.uint8], nodes: NDArray[np.bool_], rounds: int
) -> NDArray[np.bool_]:
    """Return the nodes in the largest colour classes after some rounds: [graph, node]."""
    chosen = np.zeros_like(nodes)
    for k, (edges, present) in enumerate(zip(adjacency, nodes, strict=True)):
        present_edges = edges[np.ix_(present, present)]
        colours = np.zeros(len(present_edges), dtype=np.int64)
        for _ in range(rounds):
            neighbours = present_edges @ np.eye(len(present_edges), dtype=np.int64)[colours]
            rows = np.column_stack([colours, neighbours])
            colours = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        sizes = np.bincount(colours)
        chosen[k, present] = sizes[colours] == sizes.max()
    return chosen


def _middle_degree(adjacency: NDArray[np.uint8], nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the nodes whose degree is closest to half of the other nodes: [graph, node]."""
    middle = (nodes.sum(-1, keepdims=True) - 1) / 2
    distance = np.where(nodes, np.abs(adjacency.sum(-1) - middle), np.inf)
    closest: NDArray[np.bool_] = distance == distance.min(-1, keepdims=True)
    return closest


if __name__ == "__main__":
    file = sys.argv[1] if len(sys.argv) > 1 else "experiments/graph_isomorphism_help.yaml"
    for name, value in vars(exact_accuracies(file)).items():
        print(f"{name.replace('_', ' ')}: {value:.1%}")
