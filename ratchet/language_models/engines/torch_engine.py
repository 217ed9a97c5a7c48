"""Generation with torch for the service: batched, with each result independent of its batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import DataError, UnknownNameError, nearest
from ratchet.language_models.engines.batch_loop import BatchLoop, NewRows
from ratchet.language_models.engines.interface import (
    EmbeddingRequest,
    EmbeddingResult,
    FinishReason,
    GeneratedToken,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    PromptToken,
    QueuedRequest,
    RequestRefusedError,
    TokenChoice,
    tokens_within,
)
from ratchet.language_models.engines.prompts import read_prompt, read_text
from ratchet.language_models.engines.sampling import Sampler, log_probabilities, pcg64_uniforms
from ratchet.language_models.local.loading import load_frozen_model
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_BATCH_SIZE = 256
_JOIN_PERIOD = 16  # tokens


class GrammarTokenizer:
    """A model's tokens in llguidance's format."""

    def __init__(self, tokenizer: ChatTokenizer, vocabulary: int) -> None:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise DataError(
                "Completions for a schema need llguidance, which is not installed here: `pip"
                " install 'ratchet-experiments[llm]'`."
            ) from error
        file = str(tokenizer.folder / "tokenizer.json")
        self.tokens: LLTokenizer = LLTokenizer(
            file, n_vocab=vocabulary, eos_token=list(tokenizer.end_ids)
        )
        self.vocabulary = vocabulary


class Grammar:
    """The state of a constrained completion, token by token."""

    def __init__(self, tokenizer: GrammarTokenizer, schema: str) -> None:
        from llguidance import LLMatcher

        try:
            # no whitespace: a small model would write it until its token limit
            compact: JsonCompileOptions = {"whitespace_flexible": False}
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=compact)
        except ValueError as error:
            raise DataError(f"The schema is not supported: {error}") from error
        self._matcher: LLMatcher = LLMatcher(tokenizer.tokens, grammar, log_level=0)
        self._vocabulary = tokenizer.vocabulary
        self._check()

    def allowed(self) -> Tensor:
        """Return which tokens may come next, bool[V]."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocabulary]
        return torch.from_numpy(allowed.astype(bool))

    def take(self, token: int) -> bool:
        """Append a token; return whether the completion is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = self._matcher.get_error().partition("\n")[0]
            raise DataError(f"The schema is not supported: {problem}")


@dataclass(slots=True)
class _Loaded:
    model: LanguageModel
    grammars: GrammarTokenizer | None = None

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    def grammar(self, schema: str) -> Grammar:
        """Build the grammar of a schema over this model's tokens."""
        if self.grammars is None:
            self.grammars = GrammarTokenizer(self.tokenizer, self.model.vocabulary_size)
        return Grammar(self.grammars, schema)


@dataclass(slots=True)
class _Row:
    """A request and its completion."""

    queued: QueuedRequest
    prompt: tuple[int, ...]
    room: int
    ids: list[int] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    text: str | None = None  # up to a stop text
    finish: FinishReason | None = None
    grammar: Grammar | None = None
    refused: RequestRefusedError | None = None
    streamed: tuple[int, int] = (0, 0)  # characters and tokens that were streamed

    @property
    def request(self) -> GenerationRequest:
        """The completion to generate."""
        return self.queued.request

    @property
    def longest(self) -> int:
        """Its maximal tokens, the prompt included."""
        return len(self.prompt) + self.room


class TorchEngine:
    """Runs models with torch; small ones in float64, so that batching changes no result."""

    def __init__(self, *, max_batch_size: int = MAX_BATCH_SIZE) -> None:
        self._max_batch_size = max_batch_size
        self._loaded: dict[str, _Loaded] = {}

    @property
    def max_batch_size(self) -> int:
        """Maximal number of requests in one call of ``generate``."""
        return self._max_batch_size

    def load(self, model_id: str, folder: Path, adapters: Sequence[Path] = ()) -> None:
        """Prepare a model for ``generate``; adapters of one 16-bit base share its weights."""
        self._loaded[model_id] = _Loaded(load_frozen_model(folder, adapters))

    def unload(self, model_id: str) -> None:
        """Free a loaded model's memory."""
        self._loaded.pop(model_id, None)
        torch.cuda.empty_cache()  # for the processes of jobs

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult | RequestRefusedError]:
        """Complete a batch of requests to one loaded model."""
        entries = [_Entry(request) for request in requests]
        waiting = deque(entries)
        self.generate_continuously(
            requests[0].model,
            lambda count: [waiting.popleft() for _ in range(min(count, len(waiting)))],
        )
        return [entry.result for entry in entries if entry.result is not None]

    def generate_continuously(
        self, model_id: str, take: Callable[[int], Sequence[QueuedRequest]]
    ) -> None:
        """Complete requests to a loaded model; see :class:`ContinuousEngine`."""
        loaded = self._model(model_id)
        with torch.inference_mode():
            size = self._max_batch_size
            requests = _Requests(loaded, take, size)
            BatchLoop(loaded.model, requests, size, join_period=_JOIN_PERIOD).run()

    def embed(
        self, requests: Sequence[EmbeddingRequest]
    ) -> list[EmbeddingResult | RequestRefusedError]:
        """Embed texts one at a time, so that none depends on its batch."""
        loaded = self._model(requests[0].model)
        with torch.inference_mode():
            return [_embed(loaded, request) for request in requests]

    def _model(self, name: str) -> _Loaded:
        loaded = self._loaded.get(name)
        if loaded is None:
            raise UnknownNameError(f"the model {name!r} isn't loaded.{nearest(name, self._loaded)}")
        return loaded


@dataclass(slots=True)
class _Entry:
    """A request of a list, and its result."""

    request: GenerationRequest
    result: GenerationResult | RequestRefusedError | None = None
    is_cancelled: bool = False

    def deliver(self, result: GenerationResult | RequestRefusedError) -> None:
        self.result = result


class _Requests:
    """Requests that were taken, and wait for rows.

    On a GPU a row that is longer than the slots waits until these are free, and all others behind
    it, so that it starts.
    """

    def __init__(
        self, loaded: _Loaded, take: Callable[[int], Sequence[QueuedRequest]], max_rows: int
    ) -> None:
        self._loaded = loaded
        self._take = take
        self._max_rows = max_rows
        self._waiting: deque[_Row] = deque()

    def longest(self) -> int:
        """Return the maximal tokens of a waiting row; 0 if none waits."""
        self._fetch(self._max_rows)
        return max((row.longest for row in self._waiting), default=0)

    def take(self, count: int, longest: int, /) -> NewRows | None:
        """Take the next requests, until a row may be longer than ``longest``."""
        self._fetch(count)
        rows: list[_Row] = []
        while self._waiting and len(rows) < count and self._waiting[0].longest <= longest:
            rows.append(self._waiting.popleft())
        return ([row.prompt for row in rows], _Rows(self._loaded, rows)) if rows else None

    def _fetch(self, count: int) -> None:
        """Read prompts until ``count`` requests wait; those that need no row get their results."""
        self._waiting = deque(row for row in self._waiting if not row.queued.is_cancelled)
        while len(self._waiting) < count and (new := self._take(count - len(self._waiting))):
            for queued in new:
                row = _admit(self._loaded, queued)
                if isinstance(row, RequestRefusedError):
                    queued.deliver(row)
                elif row.room:
                    self._waiting.append(row)
                else:
                    queued.deliver(_result(self._loaded, row))


def _admit(loaded: _Loaded, queued: QueuedRequest) -> _Row | RequestRefusedError:
    """Read a request's prompt, or return the reason of its refusal."""
    request = queued.request
    prompt = read_prompt(loaded.tokenizer, request, loaded.model.context_length)
    if isinstance(prompt, RequestRefusedError):
        return prompt
    left = loaded.model.context_length - len(prompt)
    limit = left if request.max_tokens is None else min(left, request.max_tokens)
    row = _Row(queued, tuple(prompt), limit)
    if request.schema is not None:
        try:
            row.grammar = loaded.grammar(request.schema)
        except DataError as error:
            return _bad_schema(request, error)
    return row


def _embed(loaded: _Loaded, request: EmbeddingRequest) -> EmbeddingResult | RequestRefusedError:
    most = loaded.model.context_length
    prompt = read_text(loaded.tokenizer, request.prompt, most, param="input")
    if isinstance(prompt, RequestRefusedError):
        return prompt
    mean = loaded.model.hidden(torch.tensor([prompt]))[0].double().cpu().mean(0)
    vector = mean / mean.norm().clamp(min=1e-12)
    return EmbeddingResult(tuple(vector.tolist()), len(prompt))


class _Rows:
    """The active rows of a batch: samples their tokens, and appends these to the completions."""

    def __init__(self, loaded: _Loaded, rows: list[_Row]) -> None:
        self._loaded = loaded
        self._rows = rows
        requests, device = [row.request for row in rows], loaded.model.device
        penalizes = any(request.repetition_penalty != 1 for request in requests)
        repetition = self._repetition() if penalizes else None
        self._sampler = Sampler(requests, pcg64_uniforms, device, repetition)

    def _repetition(self) -> tuple[Tensor, Tensor]:
        """Return the rows' penalties float64[B, 1], and the tokens of their prompts bool[B, V]."""
        factors = [[row.request.repetition_penalty] for row in self._rows]
        said = torch.zeros(len(factors), self._loaded.model.vocabulary_size, dtype=torch.bool)
        for index, row in enumerate(self._rows):
            said[index, torch.tensor(row.prompt)] = True
        return torch.tensor(factors, dtype=torch.float64), said

    def draw(self, logits: Tensor) -> Tensor:
        """Sample a token for each row, append it to its completion, and deliver ended ones."""
        unfinished = [row for row in self._rows if row.finish is None]
        tokens, _ = self._sampler.draw(self._allowed(logits))
        _append(self._loaded, self._rows, tokens.tolist(), logits)
        for row in unfinished:
            if row.finish is not None:
                row.queued.deliver(_result(self._loaded, row))
        return tokens

    def _allowed(self, logits: Tensor) -> Tensor:
        """Set tokens that a row's grammar forbids to -inf."""
        masked = logits
        for index, row in enumerate(self._rows):
            if row.grammar is None or row.finish is not None:
                continue
            try:
                allowed = row.grammar.allowed()
            except DataError as error:  # too complex for the parser; the other rows continue
                row.finish, row.refused = "stop", _bad_schema(row.request, error)
                continue
            masked = masked.clone() if masked is logits else masked
            masked[index].masked_fill_(~allowed.to(masked.device), -torch.inf)
        return masked

    def active(self) -> Tensor:
        """Return the indices of the unfinished rows that are not cancelled."""
        indices = [
            index
            for index, row in enumerate(self._rows)
            if row.finish is None and not row.queued.is_cancelled
        ]
        return torch.tensor(indices, dtype=torch.int64, device=self._loaded.model.device)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._sampler.keep(rows)
        self._rows = [self._rows[index] for index in rows.tolist()]

    def append(self, other: _Rows) -> None:
        """Append the rows of another object."""
        self._sampler.append(other._sampler)
        self._rows += other._rows


def _bad_schema(request: GenerationRequest, error: DataError) -> RequestRefusedError:
    return RequestRefusedError(str(error), param=request.schema_param, code="invalid_schema")


def _append(loaded: _Loaded, rows: Sequence[_Row], sampled: Sequence[int], logits: Tensor) -> None:
    """Append its token to each active row, and end rows."""
    wanting = [i for i, row in enumerate(rows) if row.finish is None and row.request.logprobs]
    scores = dict(zip(wanting, log_probabilities(logits[wanting]), strict=True)) if wanting else {}
    for index, (row, token) in enumerate(zip(rows, sampled, strict=True)):
        if row.finish is not None:
            continue
        row.ids.append(token)
        if token in loaded.tokenizer.end_ids:
            row.finish = "stop"
            if index in scores and row.request.token_ids:
                row.tokens.append(_describe(loaded.tokenizer, token, scores[index], row.request))
            continue
        if row.grammar is not None and row.grammar.take(token):
            row.finish = "stop"
        if index in scores:
            row.tokens.append(_describe(loaded.tokenizer, token, scores[index], row.request))
        if row.request.stop:
            _find_stop(loaded.tokenizer, row)
        if row.finish is None and len(row.ids) >= row.room:
            row.finish = "length"
        if row.request.on_piece is not None and row.finish is None:
            _stream_text(loaded.tokenizer, row, row.request.on_piece)


def _stream_text(
    tokenizer: ChatTokenizer, row: _Row, on_piece: Callable[[GenerationChunk], None]
) -> None:
    """Stream new text, unless a character or a stop text may be incomplete."""
    text = tokenizer.decode(row.ids)
    begun = any(text.endswith(stop[:n]) for stop in row.request.stop for n in range(1, len(stop)))
    characters, tokens = row.streamed
    if begun or text.endswith("\ufffd") or len(text) <= characters:
        return
    on_piece(GenerationChunk(text[characters:], tuple(row.tokens[tokens:])))
    row.streamed = len(text), len(row.tokens)


def _describe(
    tokenizer: ChatTokenizer, token: int, scores: Tensor, request: GenerationRequest
) -> GeneratedToken:
    top = tuple(
        TokenChoice(tokenizer.token_text(index), float(scores[index]))
        for index in _most_likely(scores, request.top_logprobs)
    )
    return GeneratedToken(tokenizer.token_text(token), float(scores[token]), top)


def _most_likely(scores: Tensor, count: int) -> list[int]:
    """Return the most likely tokens; of equally likely ones, those with lower ids first."""
    if not count:
        return []
    least = scores.topk(min(count, len(scores))).values[-1]
    candidates = (scores >= least).nonzero()[:, 0]  # topk orders equals in no defined way
    order = scores[candidates].argsort(descending=True, stable=True)
    tokens: list[int] = candidates[order[:count]].tolist()
    return tokens


def _find_stop(tokenizer: ChatTokenizer, row: _Row) -> None:
    text = tokenizer.decode(row.ids)
    found = [text.find(stop) for stop in row.request.stop if stop in text]
    if found:
        row.text, row.finish = text[: min(found)], "stop"
        if not row.request.token_ids:
            row.tokens = tokens_within(row.tokens, len(row.text))


def _result(loaded: _Loaded, row: _Row) -> GenerationResult | RequestRefusedError:
    if row.refused is not None:
        return row.refused
    wants_ids = row.request.token_ids
    return GenerationResult(
        text=loaded.tokenizer.decode(row.ids) if row.text is None else row.text,
        finish_reason=row.finish or "length",
        prompt_tokens=len(row.prompt),
        completion_tokens=len(row.ids),
        tokens=tuple(row.tokens),
        prompt=_echo(loaded, row) if row.request.echo else (),
        token_ids=tuple(row.ids) if wants_ids else (),
        prompt_ids=tuple(row.prompt) if wants_ids else (),
    )


def _echo(loaded: _Loaded, row: _Row) -> tuple[PromptToken, ...]:
    """Return the prompt's tokens with their log-probabilities."""
    texts = [loaded.tokenizer.token_text(token) for token in row.prompt]
    if not row.request.logprobs or len(row.prompt) < 2:
        return tuple(PromptToken(text) for text in texts)
    echoed = [PromptToken(texts[0])]

    def describe(logits: Tensor, tokens: Tensor) -> tuple[()]:
        for token, line in zip(tokens.tolist(), log_probabilities(logits), strict=True):
            described = _describe(loaded.tokenizer, token, line, row.request)
            echoed.append(PromptToken(described.token, described.logprob, described.top))
        return ()

    ids = torch.tensor([row.prompt])
    loaded.model.map_logits(describe, ids[:, :-1], torch.ones_like(ids[:, 1:]) > 0, ids[0, 1:])
    return tuple(echoed)
