"""Sampling of the next token, from one request's logits, parameters and seed.

Rows of a batch are independent. Computed in float64, so that batch-dependent last bits of the
logits do not affect the choice. Random numbers of rollouts are of Philox-4×32-10 (Salmon et al.
2011), which is counter-based: a stream is a key and an index, and a batch takes a few array
operations, while a generator object per request takes as much time as its answer by a small model.
The service's are of NumPy's PCG64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.rollouts import SampleRequest

Seeds: TypeAlias = Sequence[int] | NDArray[np.uint64]
Stream: TypeAlias = Callable[[Seeds, int, int], NDArray[np.float64]]
"""Numbers ``start`` to ``stop`` in [0, 1) of each seed: float64[seeds, stop − start]."""

_DECIMALS = 9
_NUMBERS = 32  # random numbers of a row that are generated at first
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


class Sampler:
    """Samples tokens for a batch's rows, each with the seed and settings of its request.

    Its tensors are on the device of the logits, so that nothing waits for the host.

    Parameters
    ----------
    stream
        The random numbers of a seed.
    repetition
        Factors float64[B, 1] and said tokens bool[B, V] for repetition penalties (Keskar et al.
        2019, section 4.1); None if no request has one.
    """

    _COLUMNS = (
        *("_temperature", "_is_greedy", "_top_p", "_penalty", "_said", "_numbers"),
        "num_generated",
    )

    def __init__(
        self,
        requests: Sequence[GenerationRequest | SampleRequest],
        stream: Stream,
        device: torch.device,
        repetition: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        temperature = np.array([request.temperature for request in requests], np.float64)
        top_p = np.array([request.top_p for request in requests], np.float64)
        self._stream = stream
        self._seeds = np.array([request.seed for request in requests], np.uint64)
        self._steps = np.zeros(len(requests), np.int64)
        self._settings = np.stack([temperature, top_p], axis=1)
        self._choose_operations()
        self._temperature = torch.from_numpy(np.where(temperature == 0, 1, temperature)[:, None])
        self._is_greedy = torch.from_numpy(temperature == 0)
        self._top_p = torch.from_numpy(top_p[:, None])
        self._numbers = torch.from_numpy(stream(self._seeds, 0, _NUMBERS))
        self.num_generated = torch.zeros(len(requests), dtype=torch.int64)
        """int[B], the tokens sampled so far."""
        self._penalizes = repetition is not None
        none = torch.empty(len(requests), 0)
        self._penalty, self._said = repetition or (none, none)
        for name in self._COLUMNS:
            setattr(self, name, getattr(self, name).to(device))

    def _choose_operations(self) -> None:
        """Note which operations the settings of any row need."""
        temperature, top_p = self._settings.T
        self._is_any_greedy = bool((temperature == 0).any())
        self._is_any_scaled = bool(((temperature != 0) & (temperature != 1)).any())
        self._is_any_cut = bool((top_p < 1).any())

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Sample a token for each row of logits [B, V]; one at -inf is never sampled.

        Returns the tokens, int64[B], and their log-probabilities at the row's temperature before
        ``top_p``, float64[B].
        """
        scores = logits.double()
        if self._penalizes:
            smaller = torch.where(scores > 0, scores / self._penalty, scores * self._penalty)
            scores = torch.where(self._said, smaller, scores)
        if self._is_any_scaled:
            scores = scores / self._temperature
        log_probs = scores.log_softmax(-1)
        probabilities = log_probs.exp()
        if self._is_any_cut:
            probabilities = nucleus(probabilities, self._top_p)
        tokens = pick(probabilities, self._next_numbers())
        if self._is_any_greedy:
            tokens = torch.where(self._is_greedy, scores.argmax(-1), tokens)
        column = tokens[:, None]
        if self._penalizes:
            self._said.scatter_(1, column, True)
        return tokens, log_probs.gather(1, column)[:, 0]

    def _next_numbers(self) -> Tensor:
        """Return each row's next number of its stream, float64[B]."""
        width = self._numbers.shape[1]
        if self._steps.max() == width:
            more = torch.from_numpy(self._stream(self._seeds, width, 2 * width))
            self._numbers = torch.cat([self._numbers, more.to(self._numbers.device)], dim=1)
        numbers = self._numbers.gather(1, self.num_generated[:, None])[:, 0]
        self.num_generated = self.num_generated + 1
        self._steps += 1
        return numbers

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, int[B']."""
        on_host = rows.cpu().numpy()
        self._seeds, self._steps = self._seeds[on_host], self._steps[on_host]
        self._settings = self._settings[on_host]
        self._choose_operations()
        for name in self._COLUMNS:
            setattr(self, name, getattr(self, name)[rows])

    def append(self, other: Sampler) -> None:
        """Append the rows of another sampler of the same batch, which have no tokens yet."""
        if self._penalizes != other._penalizes:
            lacking, penalizing = (other, self) if self._penalizes else (self, other)
            lacking._add_neutral_penalties(penalizing)
        width = self._numbers.shape[1]
        if width > _NUMBERS:
            numbers = torch.from_numpy(self._stream(other._seeds, 0, width))
            other._numbers = numbers.to(self._numbers.device)
        self._seeds = np.concatenate([self._seeds, other._seeds])
        self._steps = np.concatenate([self._steps, other._steps])
        self._settings = np.concatenate([self._settings, other._settings])
        self._choose_operations()
        for name in self._COLUMNS:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    def _add_neutral_penalties(self, like: Sampler) -> None:
        """Add penalties of 1, which change no score."""
        rows = len(self._seeds)
        self._penalizes = True
        self._penalty = like._penalty.new_ones(rows, 1)
        self._said = like._said.new_zeros(rows, like._said.shape[1])


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log-probabilities [..., V] at temperature 1, rounded to be batch-independent."""
    return logits.double().log_softmax(-1).round(decimals=_DECIMALS)


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


def philox_uniforms(seeds: Seeds, start: int, stop: int) -> NDArray[np.float64]:
    """Return numbers of Philox-4×32-10, with 53 random bits each; see :data:`Stream`."""
    first, last = start // 2, -(-stop // 2)  # two numbers per block
    rows, blocks = len(seeds), last - first
    counters = np.zeros((4, rows, blocks), np.uint32)
    counters[0] = np.arange(first, last)
    numbers = np.asarray(seeds, np.uint64)
    words = np.stack([numbers & _LOW, numbers >> _WORD]).astype(np.uint32)
    keys = np.repeat(words, blocks, axis=1)
    drawn = philox(counters.reshape(4, -1), keys).astype(np.uint64)
    pairs = (drawn[::2] >> np.uint64(5)) * np.float64(2**26) + (drawn[1::2] >> np.uint64(6))
    uniforms = (pairs / 2**53).reshape(2, rows, blocks)
    flat: NDArray[np.float64] = np.moveaxis(uniforms, 0, -1).reshape(rows, 2 * blocks)
    return flat[:, start - 2 * first : stop - 2 * first]


def pcg64_uniforms(seeds: Seeds, start: int, stop: int) -> NDArray[np.float64]:
    """Return numbers of NumPy's PCG64; see :data:`Stream`."""
    generators = (np.random.PCG64(int(seed)).advance(start) for seed in seeds)
    return np.stack([np.random.Generator(each).random(stop - start) for each in generators])
