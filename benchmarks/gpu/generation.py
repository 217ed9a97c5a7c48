"""Generation with a model of 0.5 B: Ratchet's engine against transformers' ``generate``.

The floor is the time in which the device could read weights, keys and values once per token.
"""

from __future__ import annotations

import sys

import torch
from workbench import Bench, bench, measured, show

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest, log_prob_differences
from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

NAME = "0.5b"


def main() -> None:
    """Print tables of speed and of agreement."""
    with bench(sys.argv[1:]) as sizes:
        model = sizes.load(NAME)
        assert isinstance(model, HuggingFaceLanguageModel)
        model.end_ids = ()  # all completions have one length
        rows, requests = list[dict[str, object]](), sizes.requests(sizes.sequences)
        engine = InProcessEngine(model, max_batch_size=sizes.sequences)
        engine.generate(sizes.requests(4)[:2])  # imports and handles
        for label in ("ratchet, first call", "ratchet"):
            rows.append(timed(label, engine, requests))
        ragged = sizes.requests(2 * sizes.sequences, ragged=True)
        rows.append(timed("ratchet, different lengths, refilled", engine, ragged))
        rows.append(transformers_row(sizes, model))
        floor = floor_seconds(sizes)
        for row in rows:
            row["× floor"] = float(row["seconds"]) / floor  # type: ignore[arg-type]
        show(f"Generation, {sizes.sequences} × ({sizes.prompt} + {sizes.new}) tokens", rows)
        show("Agreement", agreement(sizes, model, engine))


def timed(label: str, engine: InProcessEngine, requests: list[SampleRequest]) -> dict[str, object]:
    """Return the row of a call."""
    row: dict[str, object] = {"engine": label, "sequences": len(requests)}
    with measured(row):
        completions = engine.generate(requests)
    count = sum(len(completion.tokens) for completion in completions)
    return row | {"tokens/s": count / float(row["seconds"])}  # type: ignore[arg-type]


def transformers_row(sizes: Bench, model: HuggingFaceLanguageModel) -> dict[str, object]:
    """Return the row of transformers' own loop on the same network."""
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=sizes.new,
        pad_token_id=0,
        eos_token_id=None,
    )
    ids = torch.tensor(sizes.prompts(sizes.sequences), device=sizes.device)
    row: dict[str, object] = {"engine": "transformers generate", "sequences": len(ids)}
    with measured(row), torch.inference_mode():
        written = model._network.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
    count = written.numel() - ids.numel()
    return row | {"tokens/s": count / float(row["seconds"])}  # type: ignore[arg-type]


def floor_seconds(sizes: Bench) -> float:
    """Return the seconds in which the device reads all weights, keys and values of each step."""
    shape = sizes.shape(NAME)
    head = shape.width // shape.heads
    projections = shape.width * (2 * shape.heads + 2 * shape.key_value_heads) * head
    layer = projections + 3 * shape.width * shape.mlp
    weights = 2 * (shape.layers * layer + sizes.vocabulary * shape.width)
    token = 2 * shape.layers * 2 * shape.key_value_heads * head
    read = sizes.new * weights + sizes.sequences * token * sum(
        sizes.prompt + written for written in range(sizes.new)
    )
    source = torch.empty(2**24 if sizes.is_tiny else 2**30, dtype=torch.uint8, device=sizes.device)
    target, row = torch.empty_like(source), dict[str, object]()
    target.copy_(source)
    with measured(row):
        for _ in range(10):
            target.copy_(source)
    return read * float(row["seconds"]) / (20 * source.numel())  # type: ignore[arg-type]


def agreement(
    sizes: Bench, model: HuggingFaceLanguageModel, engine: InProcessEngine
) -> list[dict[str, object]]:
    """Compare a repetition, another batch, a growing cache and the trainer's log-probabilities."""
    requests = sizes.requests(min(32, sizes.sequences), ragged=True)
    written = engine.generate(requests)
    alone = [engine.generate([request])[0] for request in requests[:4]]
    model.uses_slots = False
    growing = engine.generate(requests)
    model.uses_slots = True
    rows = list[dict[str, object]]()
    for label, others in (
        ("the same call again", engine.generate(requests)),
        ("each request alone", alone),
        ("a growing cache, no graph", growing),
    ):
        pairs = list(zip(written, others, strict=False))
        equal = sum(one.tokens == other.tokens for one, other in pairs) / len(pairs)
        rows.append({"compared with": label, "completions with equal tokens": equal})
    texts = [[*r.prompt, *c.tokens] for r, c in zip(requests, written, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True)
    columns = torch.arange(ids.shape[1])
    lengths = torch.tensor([[len(text)] for text in texts])
    prompts = torch.tensor([[len(request.prompt)] for request in requests])
    chosen = (columns >= prompts) & (columns < lengths)
    with torch.no_grad():
        scores = model.score(ids, columns < lengths, chosen).log_probs.cpu()[chosen]
    sampled = [p for completion in written for p in completion.log_probs]
    return [
        *rows,
        {"compared with": "the trainer's log-probabilities"}
        | dict(log_prob_differences(sampled, scores.tolist())),
    ]


if __name__ == "__main__":
    main()
