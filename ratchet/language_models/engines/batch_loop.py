"""The loop that generates completions of a batch, token by token.

Finished rows are replaced by waiting prompts, so that the batch stays full although lengths differ.
A prompt that several rows share is read once. :class:`Rows` samples the tokens and ends rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratchet.language_models.local.model import GenerationCache, LanguageModel, pad_left

_NEXT_ADMIT = 0.125  # new rows are read when this share of the slots is free


class Rows(Protocol):
    """The sampling state of a batch's rows."""

    def draw(self, logits: Tensor) -> Tensor:
        """Sample each row's next token from logits [B, V]: int[B]; finished rows' are ignored."""
        ...

    def active(self) -> Tensor:
        """Return the indices of the unfinished rows, int[B'], on the logits' device."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, int[B']."""
        ...

    def append(self, other: Any) -> None:  # noqa: ANN401 -- of the same class
        """Append the rows of another object."""
        ...


@dataclass(slots=True)
class _Batch:
    """Active rows, their key-value cache, and the logits [B, V] of their next token."""

    rows: Rows
    cache: GenerationCache
    logits: Tensor
    lengths: NDArray[np.int64]  # tokens of each row, its prompt included

    def keep(self, rows: Tensor) -> None:
        self.rows.keep(rows)
        self.cache.keep(rows)
        self.lengths = self.lengths[rows.cpu().numpy()]

    def append(self, other: _Batch) -> None:
        self.rows.append(other.rows)
        self.cache.append(other.cache)
        self.logits = torch.cat([self.logits, other.logits])
        self.lengths = np.concatenate([self.lengths, other.lengths])


class BatchLoop:
    """Generates completions of prompts.

    Parameters
    ----------
    prompts
        Token ids; each prompt leaves room for a token in the model's context.
    size
        Maximal number of concurrent rows; fewer if a GPU's memory is too small.
    length
        Maximal tokens of a row, its prompt included.
    make_rows
        Builds the sampling state of the prompts with these indices.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[tuple[int, ...]],
        size: int,
        length: int,
        make_rows: Callable[[range], Rows],
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._size = model.rows_at_once(length, size)
        self._length = length
        self._make_rows = make_rows
        self._waiting = range(len(prompts))

    def run(self) -> None:
        """Generate until all rows have ended."""
        batch = self._begin()
        for step in itertools.count(1):
            tokens = batch.rows.draw(batch.logits)
            batch.lengths += 1
            if step % batch.cache.block_size:
                batch.logits = self._model.step(tokens, batch.cache)
                continue
            active = batch.rows.active()
            if not len(active):
                if not self._waiting:
                    return
                batch = self._begin()
                continue
            free = self._size - len(active)
            admits = (
                bool(self._waiting) and batch.cache.can_append and free >= _NEXT_ADMIT * self._size
            )
            # a finished row whose context is full has no next position
            is_full = batch.lengths.max() >= self._model.context_length
            if admits or is_full or len(active) < batch.cache.least_active * len(tokens):
                tokens = tokens[active]
                batch.keep(active)
            batch.logits = self._model.step(tokens, batch.cache)
            if admits:
                batch.append(self._admit(free))

    def _begin(self) -> _Batch:
        """Read the first of the waiting prompts."""
        batch = self._admit(self._size)
        batch.cache = self._model.hold(batch.cache, self._size, self._length)
        return batch

    def _admit(self, count: int) -> _Batch:
        """Read the next prompts, each once for all its rows."""
        indices, self._waiting = self._waiting[:count], self._waiting[count:]
        unique: dict[tuple[int, ...], int] = {}
        read = [unique.setdefault(self._prompts[index], len(unique)) for index in indices]
        device = self._model.device
        logits, cache = self._model.start(*pad_left(list(unique), device))
        if len(unique) < len(read):
            copies = torch.tensor(read, device=device)
            logits = logits[copies]
            cache.keep(copies)
        lengths = np.array([len(self._prompts[index]) for index in indices])
        return _Batch(self._make_rows(indices), cache, logits, lengths)
