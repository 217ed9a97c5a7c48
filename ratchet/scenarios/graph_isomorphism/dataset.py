"""Datasets of graph pairs by name: ``generated``, ``er1000``, ``eru10000``.

``er<N>`` are N pairs whose sizes and densities are sampled at random, ``eru<N>`` N pairs spread
evenly over them; ``generated`` takes both from the section ``graph_isomorphism``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch
from tensordict import TensorDict

from ratchet.errors import DataError, OutOfMemoryError, ParameterError
from ratchet.scenarios.base import VALIDATION
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.graph_isomorphism.generator import (
    GraphPairs,
    GraphPool,
    PairMix,
    generate_pairs,
)
from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismParameters
from ratchet.scenarios.graph_isomorphism.wl import wl_scores
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

NAMED = re.compile(r"er(?P<uniform>u?)(?P<num_pairs>[1-9][0-9]*)")


def build_graph_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Build ``train``, ``test``, ``validation`` if it has a size, and the extra test sets.

    The sides share no graph, not even a relabelled one. Each set has separate random numbers, so
    that e.g. a different training mix does not change the test set.
    """
    section: GraphIsomorphismParameters = hyper_params.graph_isomorphism
    num_pairs, uniform = _read_name(hyper_params.dataset, section)
    test_size, validation_size = hyper_params.test_size, hyper_params.validation.size
    num_test, num_validation = round(num_pairs * test_size), round(num_pairs * validation_size)
    num_train = num_pairs - num_test - num_validation
    if min(num_test, num_train) < 1:
        raise ParameterError(
            f"test_size: {test_size} of {num_pairs} pairs, with validation.size"
            f" {validation_size}, leaves {num_test} for testing and {num_train} for training,"
            " expected at least one of each."
        )
    test_mix = PairMix(
        num_pairs=num_test,
        prop_non_isomorphic=section.prop_non_isomorphic,
        prop_score_1=section.prop_score_1,
        prop_score_2=section.prop_score_2,
        max_wl_rounds=section.max_wl_rounds,
        graph_sizes=section.graph_sizes,
        edge_probabilities=section.edge_probabilities,
        uniform=uniform,
        balanced=section.balanced,
    )
    score_1, score_2 = section.train_mix
    mixes = {
        "train": replace(test_mix, num_pairs=num_train, prop_score_1=score_1, prop_score_2=score_2),
        "test": test_mix,
    }
    if num_validation:
        mixes[VALIDATION] = replace(test_mix, num_pairs=num_validation)
    for name, extra in sorted(section.extra_test_sets.items()):
        sizes = extra.graph_sizes or section.graph_sizes
        mixes[name] = replace(test_mix, **{**extra.to_dict(), "graph_sizes": sizes})
    seed = hyper_params.seed if section.dataset_seed is None else section.dataset_seed
    test_low = 1 - test_size
    ranges = {
        "train": (0.0, test_low - validation_size),
        VALIDATION: (test_low - validation_size, test_low),
    }
    datasets = {
        name: _build(name, mix, seed, ranges.get(name, (test_low, 1.0)))
        for name, mix in mixes.items()
    }
    datasets["train"] = datasets["train"].take(hyper_params.dataset_options.max_train_size)
    return datasets


def _read_name(name: str, section: GraphIsomorphismParameters) -> tuple[int, bool]:
    """Return the number of a dataset's pairs, and whether sizes are spread evenly."""
    if name == "generated":
        return section.num_pairs, section.uniform_sizes
    match = NAMED.fullmatch(name)
    if match is None:
        raise ParameterError(
            f"dataset: got {name!r}, expected 'generated', 'er<N>' or 'eru<N>' with N the number of"
            " pairs, e.g. 'er1000' or 'eru10000'."
        )
    return int(match["num_pairs"]), bool(match["uniform"])


def _check_memory(name: str, mix: PairMix) -> None:
    """Refuse what takes long to make and could not be held."""
    needed, there = 2 * mix.num_pairs * max(mix.graph_sizes) ** 2, psutil.virtual_memory().total
    if needed > there:
        raise OutOfMemoryError(
            f"graph_isomorphism: the {mix.num_pairs:,} pairs of {name!r} take at least"
            f" {needed / 2**30:,.0f} GiB, but this machine has {there / 2**30:,.0f}. Lower"
            " num_pairs or graph_sizes."
        )


def _build(name: str, mix: PairMix, seed: int, key_range: tuple[float, float]) -> TensorDictDataset:
    _check_memory(name, mix)
    low, high = key_range
    salt = derive_seed(seed, "graph_isomorphism", purpose="sides")
    pool = GraphPool(salt=salt, low=low, high=high)
    rng = numpy_generator(seed, "graph_isomorphism", purpose=f"pairs/{name}")
    return pairs_to_dataset(generate_pairs(mix, pool, rng), max_wl_rounds=mix.max_wl_rounds)


def pairs_to_dataset(pairs: GraphPairs, *, max_wl_rounds: int) -> TensorDictDataset:
    """Check every label and put the pairs on tensors.

    They are ``adjacency`` uint8 [N, 2, n, n], ``node_mask`` bool [N, 2, n], ``y``, ``wl_score`` and
    ``num_nodes`` int64 [N], ``edge_probability`` float32 [N].
    """
    num_pairs, _, n, _ = pairs.adjacency.shape
    node_mask = np.arange(n) < pairs.num_nodes[:, None, None]
    node_mask = np.broadcast_to(node_mask, (num_pairs, 2, n)).copy()
    expected = np.where(pairs.wl_score == 0, max_wl_rounds + 1, pairs.wl_score)
    scores = wl_scores(pairs.adjacency, node_mask, max_rounds=max_wl_rounds)
    wrong = np.flatnonzero(scores != expected)
    if wrong.size:
        raise DataError(
            f"graph_isomorphism: pair {wrong[0]} has the score {pairs.wl_score[wrong[0]]}, but"
            f" refinement says {scores[wrong[0]]} ({wrong.size} such pairs)."
        )
    return TensorDictDataset(
        TensorDict(
            {
                "adjacency": torch.from_numpy(pairs.adjacency),
                "node_mask": torch.from_numpy(node_mask),
                "y": torch.from_numpy((pairs.wl_score == 0).astype(np.int64)),
                "wl_score": torch.from_numpy(pairs.wl_score),
                "num_nodes": torch.from_numpy(pairs.num_nodes),
                "edge_probability": torch.from_numpy(pairs.edge_probability.astype(np.float32)),
            },
            batch_size=[num_pairs],
        )
    )
