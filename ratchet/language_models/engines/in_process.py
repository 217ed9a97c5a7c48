"""Generation with the trainer's own weights, in its process, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import ParameterError
from ratchet.language_models.engines.batch_loop import BatchLoop, NewRows
from ratchet.language_models.engines.rollouts import (
    ENGINES,
    Completion,
    SampleRequest,
    check_prompts,
)
from ratchet.language_models.engines.sampling import Sampler, philox_uniforms
from ratchet.language_models.local.model import LanguageModel

MAX_BATCH_SIZE = 256


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
        check_prompts(requests, self._model)
        if not requests:
            return []
        model = self._model
        ends = model.end_ids if self._end_ids is None else self._end_ids
        stops = [(*ends, *request.stop_ids) for request in requests]
        call = _Call(requests, stops, model.context_length, model.device)
        with torch.inference_mode():
            BatchLoop(model, call, self._max_batch_size).run()
            return call.completions()


class _Rows:
    """The active rows of a call: samples their tokens, and keeps all of them."""

    def __init__(self, call: _Call, indices: range) -> None:
        requests = [call.requests[index] for index in indices]
        stops = [call.stops[index] for index in indices]
        columns = max(map(len, call.stops))
        rooms = [
            min(request.max_tokens, call.context_length - len(request.prompt))
            for request in requests
        ]
        self._call = call
        self._sampler = Sampler(requests, philox_uniforms, call.device)
        self._indices = torch.arange(indices.start, indices.stop, device=call.device)
        """int[B], the requests' indices; -1 of a finished one."""
        self._stops = torch.tensor(
            [[*row, *[-1] * (columns - len(row))] for row in stops], device=call.device
        )
        self._room = torch.tensor(rooms, device=call.device)

    def draw(self, logits: Tensor) -> Tensor:
        """Sample a token for each row, and end rows."""
        tokens, log_probs = self._sampler.draw(logits)
        self._call.written.append((self._indices, tokens, log_probs))
        is_over = (self._stops == tokens[:, None]).any(1)
        is_over |= self._sampler.num_generated >= self._room
        self._indices = self._indices.masked_fill(is_over, -1)
        return tokens

    def active(self) -> Tensor:
        """Return the indices of the unfinished rows."""
        return (self._indices >= 0).nonzero()[:, 0]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._sampler.keep(rows)
        self._indices, self._stops = self._indices[rows], self._stops[rows]
        self._room = self._room[rows]

    def append(self, other: _Rows) -> None:
        """Append the rows of another object."""
        self._sampler.append(other._sampler)
        self._indices = torch.cat([self._indices, other._indices])
        self._stops = torch.cat([self._stops, other._stops])
        self._room = torch.cat([self._room, other._room])


@dataclass(slots=True)
class _Call:
    """The requests of a call, and the tokens of all steps."""

    requests: Sequence[SampleRequest]
    stops: Sequence[tuple[int, ...]]
    context_length: int
    device: torch.device
    written: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Of each step: the requests' indices, tokens and log-probabilities."""
    num_taken: int = 0

    def longest(self) -> int:
        """Return the maximal tokens of any row, so that all batches have equal slots."""
        if self.num_taken == len(self.requests):
            return 0
        longest = max(len(request.prompt) + request.max_tokens for request in self.requests)
        return min(longest, self.context_length)

    def take(self, count: int, _: int, /) -> NewRows | None:
        """Take the next requests."""
        indices = range(self.num_taken, min(self.num_taken + count, len(self.requests)))
        self.num_taken = indices.stop
        if not indices:
            return None
        return [self.requests[index].prompt for index in indices], _Rows(self, indices)

    def completions(self) -> list[Completion]:
        """Regroup the tokens of all steps by request."""
        indices, tokens, log_probs = (
            torch.cat(column).cpu().numpy() for column in zip(*self.written, strict=True)
        )
        order = np.argsort(indices, kind="stable")
        order = order[np.searchsorted(indices[order], 0) :]  # drops the tokens of finished rows
        cuts = np.searchsorted(indices[order], np.arange(1, len(self.requests)))
        parts = zip(
            np.split(tokens[order], cuts),
            np.split(log_probs[order], cuts),
            self.stops,
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
