"""Token ids in, token ids with log-probabilities out; prompts side by side with a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.errors import DataError
from ratchet.language_models.service.engine.interface import GenerationRequest
from ratchet.language_models.service.engine.model_folder import CausalModel
from ratchet.language_models.service.engine.sampling import Sampler
from ratchet.language_models.training_service.interface import Completion, SampleRequest

_ROWS_AT_ONCE = 64


@torch.inference_mode()
def sample(
    model: CausalModel, requests: Sequence[SampleRequest], end_ids: Sequence[int]
) -> list[Completion]:
    """Go on from prompts; the same requests with the same weights give the same bits.

    Raises
    ------
    DataError
        If a prompt leaves no room in the context.
    """
    for request in requests:
        if not 0 < len(request.prompt) < model.context_length:
            raise DataError(
                f"prompt: got {len(request.prompt)} tokens, expected at least one, and less than"
                f" the model's context of {model.context_length}."
            )
    found: list[Completion] = []
    for start in range(0, len(requests), _ROWS_AT_ONCE):
        found += _sample_batch(model, requests[start : start + _ROWS_AT_ONCE], end_ids)
    return found


def _sample_batch(
    model: CausalModel, requests: Sequence[SampleRequest], end_ids: Sequence[int]
) -> list[Completion]:
    ids, readable = _padded([request.prompt for request in requests])
    sampler = Sampler([_generation(request) for request in requests])
    temperatures = torch.tensor([r.temperature or 1.0 for r in requests], dtype=torch.float64)
    ends = [{*request.stop_ids, *end_ids} for request in requests]
    rooms = [min(r.max_tokens, model.context_length - len(r.prompt)) for r in requests]
    tokens: list[list[int]] = [[] for _ in requests]
    log_probs: list[list[float]] = [[] for _ in requests]
    at_work = list(range(len(requests)))
    logits, cache = model.start(ids, readable)
    while True:
        drawn = sampler.draw(logits)
        scaled = (logits.double().cpu() / temperatures[:, None]).log_softmax(-1)
        chosen = scaled.gather(1, drawn[:, None])[:, 0]
        for row, token, log_prob in zip(at_work, drawn.tolist(), chosen.tolist(), strict=True):
            tokens[row].append(token)
            log_probs[row].append(log_prob)
        kept = [
            place
            for place, row in enumerate(at_work)
            if tokens[row][-1] not in ends[row] and len(tokens[row]) < rooms[row]
        ]
        if not kept:
            break
        if len(kept) < len(at_work):
            rows = torch.tensor(kept)
            sampler.keep(rows)
            cache.keep(rows)
            drawn, temperatures = drawn[rows], temperatures[rows]
            at_work = [at_work[place] for place in kept]
        logits = model.step(drawn, cache)
    return [
        Completion(tuple(ids), tuple(given), "stop" if ids[-1] in end else "length")
        for ids, given, end in zip(tokens, log_probs, ends, strict=True)
    ]


def _generation(request: SampleRequest) -> GenerationRequest:
    return GenerationRequest(
        model="",
        messages=(),
        seed=request.seed,
        temperature=request.temperature,
        top_p=request.top_p,
    )


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Lay prompts in a rectangle, padded on the left; ids and what of them can be read."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    readable = torch.tensor(
        [[False] * (longest - len(p)) + [True] * len(p) for p in prompts], dtype=torch.bool
    )
    return ids, readable
