"""Sampling of the next token, from one request's logits, parameters and seed.

Rows of a batch are independent. Computed in float64, so that batch-dependent last bits of the
logits do not affect the choice. Random numbers of rollouts are of Philox-4×32-10 (Salmon et al.
2011), which is counter-based: a stream is a key and an index, and a batch takes a few array
operations, while a generator object per request takes as much time as its answer by a small model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratchet.language_models.engines.interface import GenerationRequest

_DECIMALS = 9
_CHUNK = 64
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_LARGEST = 2**64 - 1


class Sampler:
    """Samples tokens for a batch of requests, each with its own seed and parameters.

    ``prompts`` are the requests' tokens, for repetition penalties.
    """

    def __init__(
        self, requests: Sequence[GenerationRequest], prompts: Sequence[Sequence[int]] = ()
    ) -> None:
        temperatures = [request.temperature for request in requests]
        self._temperature = torch.tensor(temperatures, dtype=torch.float64)[:, None]
        self._top_p = torch.tensor([r.top_p for r in requests], dtype=torch.float64)[:, None]
        self._greedy = self._temperature[:, 0] <= 0
        self._cuts = bool((self._top_p < 1).any())
        self._generators = [np.random.Generator(np.random.PCG64(r.seed)) for r in requests]
        penalties = [request.repetition_penalty for request in requests]
        self._penalty = torch.tensor(penalties, dtype=torch.float64)[:, None]
        self._penalizes = bool((self._penalty != 1).any())
        self._prompts = prompts
        self._said = torch.empty(0)
        self._numbers = np.empty((len(requests), 0))
        self._used = 0

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, int[B']."""
        self._temperature, self._top_p = self._temperature[rows], self._top_p[rows]
        self._greedy = self._greedy[rows]
        self._generators = [self._generators[row] for row in rows.tolist()]
        self._numbers = self._numbers[rows.numpy()]
        self._penalty = self._penalty[rows]
        if self._penalizes:
            self._said = self._said[rows]

    def draw(self, logits: Tensor) -> Tensor:
        """Sample a token for each row of logits [B, V]: int64[B]; one at -inf is never sampled."""
        scores = logits.double().cpu()
        if self._penalizes:
            scores = self._penalized(scores)
        scaled = scores / self._temperature.clamp(min=1e-6)
        probabilities = scaled.softmax(-1)
        if self._cuts:
            probabilities = nucleus(probabilities, self._top_p)
        sampled = pick(probabilities, torch.from_numpy(self._next_numbers()))
        chosen = torch.where(self._greedy, scaled.argmax(-1), sampled)
        if self._penalizes:
            self._said.scatter_(1, chosen[:, None], True)
        return chosen

    def _penalized(self, scores: Tensor) -> Tensor:
        """Return scores [B, V] with those of earlier tokens reduced."""
        if not self._said.numel():
            self._said = torch.zeros(scores.shape, dtype=torch.bool)
            for row, prompt in enumerate(self._prompts):
                self._said[row, torch.tensor(prompt)] = True
        smaller = torch.where(scores > 0, scores / self._penalty, scores * self._penalty)
        return torch.where(self._said, smaller, scores)

    def _next_numbers(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return one uniform number for each row: the next of its stream."""
        if self._used == self._numbers.shape[1]:
            self._numbers = np.stack([g.random(_CHUNK) for g in self._generators])
            self._used = 0
        self._used += 1
        numbers: np.ndarray[tuple[int], np.dtype[np.float64]] = self._numbers[:, self._used - 1]
        return np.ascontiguousarray(numbers)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log-probabilities [..., V] at temperature 1, rounded to be batch-independent."""
    return logits.double().cpu().log_softmax(-1).round(decimals=_DECIMALS)


def pick(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """Pick a token for each row of [B, V] by its number in [0, 1), float64[B]: int64[B].

    Rows need not sum to 1: tokens of a nucleus are picked in proportion.
    """
    cumulated = probabilities.cumsum(-1)
    number = numbers[:, None] * cumulated[:, -1:]
    sampled = torch.searchsorted(cumulated, number, right=True)[:, 0]
    return sampled.clamp(max=probabilities.shape[-1] - 1)


def nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Keep the smallest set of most likely tokens with probability ``top_p``; zero the rest."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    likely = torch.where(before < top_p, ordered, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, order, likely)


def philox(counters: NDArray[np.uint32], keys: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Turn counters [4, N] into random words [4, N], with keys [2, N]."""
    x0, x2 = counters[0].astype(np.uint64), counters[2].astype(np.uint64)
    even = np.stack([x0, x2])  # words 0 and 2
    odd = np.stack([counters[1], counters[3]]).astype(np.uint64)  # words 1 and 3
    key = keys.astype(np.uint32)
    for _ in range(_ROUNDS):
        products = even * _MULTIPLIERS
        high, low = products >> _WORD, products & _LOW
        even = high[::-1] ^ odd ^ key
        odd = low[::-1]
        key = key + _WEYL
    return np.stack([even[0], odd[0], even[1], odd[1]]).astype(np.uint32)


def uniforms(seeds: Sequence[int], start: int, stop: int) -> NDArray[np.float64]:
    """Return numbers ``start`` to ``stop`` of each seed's stream: float64[seeds, stop − start].

    In [0, 1), with 53 random bits each.
    """
    first, last = start // 2, -(-stop // 2)  # two numbers per block
    rows, blocks = len(seeds), last - first
    counters = np.zeros((4, rows, blocks), np.uint32)
    counters[0] = np.arange(first, last)
    given = np.array([seed & _LARGEST for seed in seeds], np.uint64)
    words = np.stack([given & _LOW, given >> _WORD]).astype(np.uint32)
    keys = np.repeat(words, blocks, axis=1)
    drawn = philox(counters.reshape(4, -1), keys).astype(np.uint64)
    pairs = (drawn[::2] >> np.uint64(5)) * np.float64(2**26) + (drawn[1::2] >> np.uint64(6))
    numbers = (pairs / 2**53).reshape(2, rows, blocks)
    flat: NDArray[np.float64] = np.moveaxis(numbers, 0, -1).reshape(rows, 2 * blocks)
    return flat[:, start - 2 * first : stop - 2 * first]
