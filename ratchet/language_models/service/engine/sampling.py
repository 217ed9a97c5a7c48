"""Sampling of the next token, from one request's logits, parameters and seed.

Rows of a batch are independent. Computed in float64, so that batch-dependent last bits of the
logits do not affect the choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ratchet.language_models.service.engine.interface import GenerationRequest

_DECIMALS = 9
_CHUNK = 64


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
