"""Supervised learning of token sequences: batches, padding and the cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_POOL_BATCHES = 16


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids, and the weight of each in the loss: 0.0 if it is only read."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


def pad(sequences: Sequence[TokenSequence]) -> tuple[Tensor, Tensor]:
    """Pad sequences on the right with 0 to one length: ids int64[B, T], weights float32[B, T]."""
    longest = max(len(sequence.ids) for sequence in sequences)
    ids = np.zeros((len(sequences), longest), dtype=np.int64)
    weights = np.zeros((len(sequences), longest), dtype=np.float32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence.ids)] = sequence.ids
        weights[row, : len(sequence.ids)] = sequence.weights
    return torch.from_numpy(ids), torch.from_numpy(weights)


def batches_of_like_length(
    rng: np.random.Generator, lengths: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Sample batches of sequences with similar lengths, without end.

    Yields
    ------
    list of int
        Indices of sequences; each at most once an epoch. A pool of shuffled indices is split into
        batches by length, so that there is little padding, and the batches of a pool are yielded in
        random order.
    """
    pool_size = batch_size * _POOL_BATCHES
    while True:
        order = rng.permutation(len(lengths))
        for start in range(0, len(order), pool_size):
            pool = sorted(order[start : start + pool_size].tolist(), key=lengths.__getitem__)
            cuts = range(0, len(pool) - batch_size + 1, batch_size)
            batches = [pool[cut : cut + batch_size] for cut in cuts]
            for index in rng.permutation(len(batches)).tolist():
                yield batches[index]


class PredictsTokens(Protocol):
    """A model that computes logits at selected positions, such as ``LanguageModel``."""

    def map_logits(
        self,
        function: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
        ids: Tensor,
        chosen: Tensor,
        tokens: Tensor,
        /,
    ) -> tuple[Tensor, ...]:
        """Apply a function to logits [m, V] and tokens [m] at a time; concatenate the results."""
        ...


class SupervisedLoss:
    """Mean cross-entropy of the tokens whose weight is not 0."""

    def __init__(self, model: PredictsTokens, sequences: Sequence[TokenSequence]) -> None:
        self._model = model
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def tokens(self) -> int:
        """Return the number of tokens read in an epoch."""
        return sum(len(sequence.ids) for sequence in self._sequences)

    def weight(self, indices: Sequence[int]) -> int:
        """Return the number of tokens that are learned in these sequences."""
        return sum(sum(w > 0 for w in self._sequences[index].weights[1:]) for index in indices)

    def __call__(
        self, indices: Sequence[int], of: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, or its share in that of the batch ``of``; no metrics."""
        ids, weights = pad([self._sequences[index] for index in indices])
        chosen = weights[:, 1:] > 0
        following = ids[:, 1:][chosen]
        means, counts = self._model.map_logits(_cross_entropy, ids[:, :-1], chosen, following)
        share = 1.0 if of is None else self.weight(indices) / self.weight(of)
        return (means * (counts / counts.sum())).sum() * share, {}


def _cross_entropy(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and the number of tokens, [1] each."""
    return F.cross_entropy(logits, tokens)[None], logits.new_full((1,), len(tokens))
