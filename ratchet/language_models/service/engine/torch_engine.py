"""Generation with torch: the requests of a batch side by side, each as if it were alone.

Prompts are padded on the left and read at once, then a token at a time with what was read kept;
rows that are over leave the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ratchet.errors import DataError, UnknownNameError, nearest
from ratchet.language_models.service.engine.interface import (
    FinishReason,
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
    RequestRefusedError,
    TokenChoice,
)
from ratchet.language_models.service.engine.model_folder import CausalModel, load_model
from ratchet.language_models.service.engine.sampling import Sampler, log_probabilities
from ratchet.language_models.service.engine.tokenizer import ChatTokenizer, ContextLengthError

MAX_BATCH_SIZE = 256
_NEXT_KEEP = 0.75  # a batch is made smaller when fewer of its rows than this are at work


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: CausalModel
    tokenizer: ChatTokenizer


@dataclass(slots=True)
class _Row:
    """A request at work."""

    request: GenerationRequest
    prompt: list[int]
    room: int
    ids: list[int] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    text: str = ""
    finish: FinishReason | None = None


class TorchEngine:
    """Runs models with torch; small ones in float64, so that batching changes no result."""

    def __init__(self, *, max_batch_size: int = MAX_BATCH_SIZE) -> None:
        self._max_batch_size = max_batch_size
        self._loaded: dict[str, _Loaded] = {}

    @property
    def max_batch_size(self) -> int:
        """Most requests that one call of ``generate`` takes."""
        return self._max_batch_size

    def load(self, model_id: str, folder: Path) -> None:
        """Make a model ready for ``generate``; see :meth:`Engine.load`."""
        self._loaded[model_id] = _Loaded(load_model(folder, training=False), ChatTokenizer(folder))

    def unload(self, model_id: str) -> None:
        """Free a loaded model's memory."""
        self._loaded.pop(model_id, None)

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult | RequestRefusedError]:
        """Answer a batch of requests to one loaded model.

        Raises
        ------
        UnknownNameError
            If the model isn't loaded.
        """
        name = requests[0].model
        loaded = self._loaded.get(name)
        if loaded is None:
            raise UnknownNameError(f"the model {name!r} isn't loaded.{nearest(name, self._loaded)}")
        rows = [_admit(loaded, request) for request in requests]
        working = [row for row in rows if isinstance(row, _Row)]
        if working:
            with torch.inference_mode():
                _generate(loaded, working)
        return [_result(loaded, row) if isinstance(row, _Row) else row for row in rows]


def _admit(loaded: _Loaded, request: GenerationRequest) -> _Row | RequestRefusedError:
    """Read a request's prompt, or say why it is refused."""
    try:
        prompt = loaded.tokenizer.prompt_ids(
            request.messages, request.template_variables, most=loaded.model.context_length
        )
    except ContextLengthError as error:
        return RequestRefusedError(str(error), param="messages", code="context_length_exceeded")
    except DataError as error:
        return RequestRefusedError(str(error), param="messages", code="invalid_messages")
    left = loaded.model.context_length - len(prompt)
    if left < 1 or not prompt:
        return RequestRefusedError(
            f"The prompt has {len(prompt)} tokens; this model's context takes"
            f" {loaded.model.context_length}, of the prompt and the completion together. Shorten"
            " the messages.",
            param="messages",
            code="context_length_exceeded",
        )
    wanted = left if request.max_tokens is None else min(left, request.max_tokens)
    return _Row(request, prompt, wanted)


def _generate(loaded: _Loaded, rows: list[_Row]) -> None:
    """Write the completions of all rows into them."""
    ids, readable = _pad_left([row.prompt for row in rows])
    sampler = Sampler([row.request for row in rows], [row.prompt for row in rows])
    logits, cache = loaded.model.start(ids, readable)
    while True:
        drawn = sampler.draw(logits)
        _append(loaded, rows, drawn.tolist(), logits)
        left = [place for place, row in enumerate(rows) if row.finish is None]
        if not left:
            return
        if len(left) < _NEXT_KEEP * len(rows):
            kept = torch.tensor(left)
            rows = [rows[place] for place in left]
            drawn = drawn[kept]
            cache.keep(kept)
            sampler.keep(kept)
        logits = loaded.model.step(drawn, cache)


def _pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids int64[B, T] and where they are no padding, bool[B, T]."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    readable = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        readable[row, longest - len(prompt) :] = True
    return ids, readable


def _append(loaded: _Loaded, rows: Sequence[_Row], drawn: Sequence[int], logits: Tensor) -> None:
    """Append its token to each row at work, and see whether it is over."""
    wanting = [i for i, row in enumerate(rows) if row.finish is None and row.request.logprobs]
    scores = dict(zip(wanting, log_probabilities(logits[wanting]), strict=True)) if wanting else {}
    for place, (row, token) in enumerate(zip(rows, drawn, strict=True)):
        if row.finish is not None:
            continue
        row.ids.append(token)
        if token in loaded.tokenizer.end_ids:
            row.finish = "stop"
            continue
        if place in scores:
            row.tokens.append(_describe(loaded.tokenizer, token, scores[place], row.request))
        if row.request.stop:
            _look_for_stop(loaded.tokenizer, row)
        if row.finish is None and len(row.ids) >= row.room:
            row.finish = "length"


def _describe(
    tokenizer: ChatTokenizer, token: int, scores: Tensor, request: GenerationRequest
) -> GeneratedToken:
    count = min(request.top_logprobs, scores.shape[0])
    values, places = scores.sort(descending=True, stable=True)
    top = tuple(
        TokenChoice(tokenizer.token_text(place), value)
        for place, value in zip(places[:count].tolist(), values[:count].tolist(), strict=True)
    )
    return GeneratedToken(tokenizer.token_text(token), float(scores[token]), top)


def _look_for_stop(tokenizer: ChatTokenizer, row: _Row) -> None:
    text = tokenizer.decode(row.ids)
    found = [text.find(stop) for stop in row.request.stop if stop in text]
    if found:
        row.text, row.finish = text[: min(found)], "stop"
        row.tokens = _tokens_of(row.tokens, len(row.text))


def _tokens_of(tokens: Sequence[GeneratedToken], length: int) -> list[GeneratedToken]:
    """Keep the tokens that begin within the first characters."""
    kept, at = [], 0
    for token in tokens:
        if at >= length:
            break
        kept.append(token)
        at += len(token.token)
    return kept


def _result(loaded: _Loaded, row: _Row) -> GenerationResult:
    stopped_by_text = row.finish == "stop" and row.ids[-1] not in loaded.tokenizer.end_ids
    return GenerationResult(
        text=row.text if stopped_by_text else loaded.tokenizer.decode(row.ids),
        finish_reason=row.finish or "length",
        prompt_tokens=len(row.prompt),
        completion_tokens=len(row.ids),
        tokens=tuple(row.tokens),
    )
