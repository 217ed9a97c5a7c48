"""The loop that generates completions of a batch, token by token.

Finished rows are replaced by waiting requests, so that the batch stays full although lengths
differ. A prompt that several rows share is read once. :class:`Rows` samples the tokens and ends
rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

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


NewRows: TypeAlias = tuple[Sequence[tuple[int, ...]], Rows]
"""Prompts, which leave room for a token in the model's context, and their sampling state."""


class RequestSource(Protocol):
    """Requests that wait for rows; new ones may arrive while others are generated."""

    def longest(self) -> int:
        """Return the maximal tokens of a waiting row, its prompt included; 0 if none waits."""
        ...

    def take(self, count: int, longest: int, /) -> NewRows | None:
        """Take up to ``count`` requests, in order, until a row may be longer than ``longest``.

        Returns None if there are none.
        """
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
    """Generates completions of the requests of a source.

    Parameters
    ----------
    size
        Maximal number of concurrent rows; fewer if a GPU's memory is too small.
    join_period
        Steps between two times that rows join, each of which takes as long as some steps.
    """

    def __init__(
        self, model: LanguageModel, requests: RequestSource, size: int, *, join_period: int = 1
    ) -> None:
        self._model = model
        self._requests = requests
        self._max_rows = size
        self._join_period = join_period

    def run(self) -> None:
        """Generate until no request waits and all rows have ended."""
        while length := self._requests.longest():
            size = self._model.rows_at_once(length, self._max_rows)
            new = self._requests.take(size, length)
            assert new is not None
            batch = self._read(new)
            batch.cache = self._model.hold(batch.cache, size, length)
            self._finish(batch, size)

    def _finish(self, batch: _Batch, size: int) -> None:
        """Generate until all rows have ended, with those that join the batch."""
        next_join = self._join_period
        for step in itertools.count(1):
            tokens = batch.rows.draw(batch.logits)
            batch.lengths += 1
            if step % batch.cache.block_size:
                batch.logits = self._model.step(tokens, batch.cache)
                continue
            active = batch.rows.active()
            if not len(active):
                return
            free, longest = size - len(active), batch.cache.longest
            admits = longest and step >= next_join and free >= _NEXT_ADMIT * size
            admits = admits and (step < longest or not self._has_more_rows(size))
            new = self._requests.take(free, longest) if admits else None
            # a finished row whose context is full has no next position
            is_full = batch.lengths.max() >= self._model.context_length
            if new or is_full or len(active) < batch.cache.least_active * len(tokens):
                tokens = tokens[active]
                batch.keep(active)
            batch.logits = self._model.step(tokens, batch.cache)
            if new:
                batch.append(self._read(new))
                next_join = step + self._join_period

    def _has_more_rows(self, size: int) -> bool:
        """Whether a batch of the waiting requests would have more rows, since they are shorter."""
        length = self._requests.longest()
        return bool(length) and self._model.rows_at_once(length, self._max_rows) > size

    def _read(self, new: NewRows) -> _Batch:
        """Read prompts, each once for all its rows."""
        prompts, rows = new
        unique: dict[tuple[int, ...], int] = {}
        read = [unique.setdefault(prompt, len(unique)) for prompt in prompts]
        device = self._model.device
        logits, cache = self._model.start(*pad_left(list(unique), device))
        if len(unique) < len(read):
            copies = torch.tensor(read, device=device)
            logits = logits[copies]
            cache.keep(copies)
        return _Batch(rows, cache, logits, np.array([len(prompt) for prompt in prompts]))
