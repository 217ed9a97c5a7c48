"""Generation with the trainer's own weights, in its process, without copies.

Finished rows are replaced by waiting requests, so that the batch stays full although lengths
differ. A prompt that several requests share is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.rollouts import ENGINES, Completion, SampleRequest
from ratchet.language_models.engines.sampling import nucleus, pick, uniforms
from ratchet.language_models.local.model import GenerationCache, LanguageModel, pad_left

MAX_BATCH_SIZE = 256
_NUMBERS = 32  # random numbers generated per row at a time
_NEXT_KEEP = 0.75  # the batch shrinks when fewer than this share of its rows are active
_NEXT_ADMIT = 0.125  # new rows are read when this share of the slots is free


@ENGINES.register("in_process")
class InProcessEngine:
    """Generates with a model of this process.

    Parameters
    ----------
    model
        Its current weights are used in each call.
    max_batch_size
        Maximal number of completions generated concurrently.
    end_ids
        The tokens that end a completion, in addition to those of its request; None for the model's.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_batch_size: int = MAX_BATCH_SIZE,
        end_ids: Sequence[int] | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ParameterError(f"max_batch_size: got {max_batch_size}, expected 1 or more.")
        self._model = model
        self._max_batch_size = max_batch_size
        self._end_ids = end_ids

    def update(self, model: LanguageModel) -> None:
        """Use this model's current weights in each call."""
        self._model = model

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Generate completions; see :meth:`RolloutEngine.generate`."""
        for number, request in enumerate(requests):
            self._check_tokens(number, request.prompt)
            if len(request.prompt) >= self._model.context_length:
                raise DataError(
                    f"prompt: got {len(request.prompt)} tokens; the model's context has"
                    f" {self._model.context_length} for prompt and completion. Shorten the prompt."
                )
        if not requests:
            return []
        with torch.inference_mode():
            ends = self._model.end_ids if self._end_ids is None else self._end_ids
            return _Batch(self._model, requests, self._max_batch_size, ends).run()

    def _check_tokens(self, number: int, prompt: Sequence[int]) -> None:
        size = self._model.vocabulary_size
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < size:
                raise DataError(
                    f"requests[{number}]: got token {token} in the prompt, expected 0 to"
                    f" {size - 1}, the model's vocabulary. Encode text with its own tokenizer."
                )


@dataclass(slots=True)
class _Rows:
    """Active rows: the sampling state of each."""

    requests: Tensor  # int[B], their indices among the requests; -1 when finished
    temperature: Tensor  # float64[B, 1], 1 where greedy
    is_greedy: Tensor  # bool[B]
    top_p: Tensor  # float64[B, 1]
    stops: Tensor  # int[B, n], padded with -1
    room: Tensor  # int[B], maximal tokens
    left: Tensor  # int[B], maximal tokens that fit into the context
    num_generated: Tensor  # int[B], generated tokens
    numbers: Tensor  # float64[B, W], the next numbers of the stream

    def keep(self, rows: Tensor) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[rows])

    def append(self, other: _Rows) -> None:
        for name in self.__slots__:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))


@dataclass(slots=True)
class _Work:
    """Rows, their key-value cache, and the logits [B, V] of their next token."""

    rows: _Rows
    cache: GenerationCache
    logits: Tensor

    def keep(self, rows: Tensor) -> None:
        self.rows.keep(rows)
        self.cache.keep(rows)

    def append(self, other: _Work) -> None:
        self.rows.append(other.rows)
        self.cache.append(other.cache)
        self.logits = torch.cat([self.logits, other.logits])


class _Batch:
    """One call's requests, from the first prompt to the last token."""

    def __init__(
        self,
        model: LanguageModel,
        requests: Sequence[SampleRequest],
        size: int,
        end_ids: Sequence[int],
    ) -> None:
        self._model = model
        self._requests = requests
        self._size = size
        self._waiting = 0  # the next request to read
        self._most_generated = 0  # the most tokens written by an active row
        self._stops = [(*end_ids, *request.stop_ids) for request in requests]
        self._most_stops = max(map(len, self._stops))
        self._scales = any(request.temperature not in (0, 1) for request in requests)
        self._is_greedy = any(request.temperature == 0 for request in requests)
        self._cuts = any(request.top_p < 1 for request in requests)
        self._written: list[tuple[Tensor, Tensor, Tensor]] = []  # requests, tokens, log-probs

    def run(self) -> list[Completion]:
        work = self._admit(self._size, _NUMBERS)
        while True:
            tokens, is_over = self._draw(work)
            admits = False
            if bool(is_over.any()):
                work.rows.requests = work.rows.requests.masked_fill(is_over, -1)
                going = (work.rows.requests >= 0).nonzero()[:, 0]
                free = self._size - len(going)
                waits = self._waiting < len(self._requests)
                if not len(going):
                    if not waits:
                        return self._completions()
                    work = self._admit(self._size, _NUMBERS)
                    continue
                admits = waits and work.cache.can_append and free >= _NEXT_ADMIT * self._size
                is_full = bool(
                    (work.rows.num_generated >= work.rows.left).any()
                )  # its context is full
                if admits or is_full or len(going) < _NEXT_KEEP * len(is_over):
                    tokens = tokens[going]
                    work.keep(going)
            work.logits = self._model.step(tokens, work.cache)
            if admits:
                work.append(self._admit(free, work.rows.numbers.shape[1]))
                self._most_generated = int(work.rows.num_generated.max())

    def _admit(self, count: int, width: int) -> _Work:
        """Read the next prompts, each once for all its requests."""
        indices = range(self._waiting, min(self._waiting + count, len(self._requests)))
        self._waiting = indices.stop
        prompts: dict[tuple[int, ...], int] = {}
        read = [prompts.setdefault(self._requests[p].prompt, len(prompts)) for p in indices]
        device = self._model.device
        logits, cache = self._model.start(*pad_left(list(prompts), device))
        if len(prompts) < len(read):
            copies = torch.tensor(read, device=device)
            logits = logits[copies]
            cache.keep(copies)
        self._most_generated = 0
        return _Work(self._make_rows(indices, width), cache, logits)

    def _make_rows(self, indices: range, width: int) -> _Rows:
        requests = [self._requests[index] for index in indices]
        stops = np.full((len(indices), self._most_stops), -1)
        for row, index in enumerate(indices):
            stops[row, : len(self._stops[index])] = self._stops[index]
        left = np.array([self._model.context_length - len(r.prompt) for r in requests])
        room = np.minimum([r.max_tokens for r in requests], left)
        temperature = np.array([r.temperature for r in requests], np.float64)
        is_greedy = temperature == 0
        columns = (
            np.arange(indices.start, indices.stop),
            np.where(is_greedy, 1.0, temperature)[:, None],
            is_greedy,
            np.array([r.top_p for r in requests], np.float64)[:, None],
            stops,
            room,
            left,
            np.zeros_like(room),
            uniforms([r.seed for r in requests], 0, width),
        )
        return _Rows(*(torch.from_numpy(column).to(self._model.device) for column in columns))

    def _draw(self, work: _Work) -> tuple[Tensor, Tensor]:
        """Sample a token for each row, int[B], and return whether it was its last, bool[B]."""
        rows = work.rows
        if self._most_generated == rows.numbers.shape[1]:
            self._make_numbers(rows)
        scores = work.logits.double()
        if self._scales:
            scores = scores / rows.temperature
        log_probs = scores.log_softmax(-1)
        probabilities = log_probs.exp()
        if self._cuts:
            probabilities = nucleus(probabilities, rows.top_p)
        tokens = pick(probabilities, rows.numbers.gather(1, rows.num_generated[:, None])[:, 0])
        if self._is_greedy:
            tokens = torch.where(rows.is_greedy, scores.argmax(-1), tokens)
        column = tokens[:, None]
        self._written.append((rows.requests, tokens, log_probs.gather(1, column)[:, 0]))
        rows.num_generated = rows.num_generated + 1
        self._most_generated += 1
        return tokens, (rows.stops == column).any(1) | (rows.num_generated >= rows.room)

    def _make_numbers(self, rows: _Rows) -> None:
        """Extend the rows' random streams; finished rows continue with arbitrary ones."""
        done = rows.numbers.shape[1]
        seeds = [self._requests[index].seed for index in rows.requests.tolist()]
        more = torch.from_numpy(uniforms(seeds, done, 2 * done)).to(rows.numbers.device)
        rows.numbers = torch.cat([rows.numbers, more], dim=1)

    def _completions(self) -> list[Completion]:
        """Regroup the tokens of all steps by request."""
        requests, tokens, log_probs = (
            torch.cat(column).cpu().numpy() for column in zip(*self._written, strict=True)
        )
        order = np.argsort(requests, kind="stable")
        order = order[np.searchsorted(requests[order], 0) :]  # drops the tokens of finished rows
        cuts = np.searchsorted(requests[order], np.arange(1, len(self._requests)))
        parts = zip(
            np.split(tokens[order], cuts),
            np.split(log_probs[order], cuts),
            self._stops,
            strict=True,
        )
        return [
            Completion(
                tuple(written.tolist()),
                tuple(scores.tolist()),
                "stop" if written[-1] in stops else "length",
            )
            for written, scores, stops in parts
        ]
