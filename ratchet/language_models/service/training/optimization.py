"""Optimizer steps that training of every kind shares: padding, schedule, clipping, one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MAX_GRADIENT_NORM = 1.0
_BETAS = (0.9, 0.98)
_EPSILON = 1e-8
_LAST_SHARE = 0.1
_POOL_BATCHES = 16


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids, and which of them are to be learned: ``weights`` 0.0 or 1.0 for each."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


def pad(sequences: Sequence[TokenSequence]) -> tuple[Tensor, Tensor]:
    """Lay sequences in one rectangle, padded on the right with 0.

    Returns ids int64[B, T] and weights float32[B, T].
    """
    longest = max(len(sequence.ids) for sequence in sequences)
    ids = np.zeros((len(sequences), longest), dtype=np.int64)
    weights = np.zeros((len(sequences), longest), dtype=np.float32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence.ids)] = sequence.ids
        weights[row, : len(sequence.ids)] = sequence.weights
    return torch.from_numpy(ids), torch.from_numpy(weights)


class Optimization:
    """Adam (Kingma and Ba 2015, algorithm 1) with a warm-up and a linear decline.

    The learning rate rises to ``learning_rate`` over ``warmup`` steps, then falls.
    Written out: the first use of torch's own imports its compiler, which takes longer than a job.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        learning_rate: float,
        steps: int,
        warmup: int,
    ) -> None:
        self._parameters = list(parameters)
        self._learning_rate = learning_rate
        self._steps, self._warmup = steps, max(1, min(warmup, steps // 4))
        self._done = 0
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]

    def step(self, loss: Tensor) -> float:
        """Follow a loss's gradient once; return the loss."""
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            clipping = (MAX_GRADIENT_NORM / (norm + _EPSILON)).clamp(max=1.0)
            self._update([gradient * clipping for gradient in gradients])
        self._done += 1
        return float(loss.detach())

    def _update(self, gradients: Sequence[Tensor]) -> None:
        count = self._done + 1
        size = self._learning_rate * self._factor() / (1 - _BETAS[0] ** count)
        correction = (1 - _BETAS[1] ** count) ** 0.5
        states = zip(self._parameters, gradients, self._means, self._squares, strict=True)
        for parameter, gradient, mean, square in states:
            mean.lerp_(gradient, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            parameter.addcdiv_(mean, square.sqrt().div_(correction).add_(_EPSILON), value=-size)

    def _factor(self) -> float:
        rise = (self._done + 1) / self._warmup
        fall = 1 - self._done / self._steps
        return min(1.0, rise, max(_LAST_SHARE, fall))


def batches_of_like_length(
    rng: np.random.Generator, lengths: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Draw batches without end, of places whose sequences are about as long as each other.

    Yields
    ------
    list of int
        Places; within an epoch none twice. A pool of shuffled places is cut into batches by
        length, so that little is padded, and the batches of a pool come in random order.
    """
    pool_size = batch_size * _POOL_BATCHES
    while True:
        order = rng.permutation(len(lengths))
        for start in range(0, len(order), pool_size):
            pool = sorted(order[start : start + pool_size].tolist(), key=lengths.__getitem__)
            cuts = range(0, len(pool) - batch_size + 1, batch_size)
            batches = [pool[cut : cut + batch_size] for cut in cuts]
            for place in rng.permutation(len(batches)).tolist():
                yield batches[place]
