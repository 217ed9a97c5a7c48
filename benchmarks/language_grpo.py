"""GRPO on the task ``reverse``: how well, and how many CPU-seconds a seed.

A character Llama is made from the seed and warmed up by supervision until it gets at most 5 % of
the words right; then it learns from rewards alone. One thread. Run with
``python benchmarks/language_grpo.py --seeds 5``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ratchet.language_models.local.in_process_engine import InProcessEngine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.rollout_engine import SampleRequest
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.language_models.local.warm_up import Demonstration, warm_up
from ratchet.seeding import derive_seed, numpy_generator

ALPHABET = "abcdefgh"
LETTERS = 6


@dataclass(frozen=True)
class Settings:
    """What the runs differ in."""

    d_model: int = 64
    layers: int = 2
    heads: int = 4
    init_scale: float = 0.06
    warm_up_steps: int = 400
    warm_up_until: float = 0.5
    warm_up_rate: float = 2e-3
    warm_up_batch: int = 32
    steps: int = 400
    tasks: int = 16
    group: int = 8
    rate: float = 1e-3
    beta2: float = 0.98
    clip_low: float = 0.2
    clip_high: float = 0.28
    epochs: int = 1
    minibatches: int = 1
    kl: float = 0.0
    max_norm: float = 1.0
    rise: int = 10
    fall_to: float = 0.1
    partial: int = 1


@dataclass
class Clock:
    """CPU-seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Count what is done inside."""
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start


def draw_words(rng: np.random.Generator, count: int) -> list[str]:
    """Draw words of six letters out of eight."""
    return ["".join(ALPHABET[k] for k in row) for row in rng.integers(0, 8, (count, LETTERS))]


def prompt_of(model: LanguageModel, word: str) -> tuple[int, ...]:
    """Return a task's prompt."""
    return tuple(model.tokenizer.encode(f"<|user|>{word}<|end|><|assistant|>"))


def answer_of(model: LanguageModel, word: str) -> tuple[int, ...]:
    """Return a task's answer."""
    return tuple(model.tokenizer.encode(f"{word[::-1]}<|end|>"))


def exact_match(model: LanguageModel, engine: InProcessEngine, words: list[str]) -> float:
    """Share of the words that are answered right, sampled."""
    requests = [
        SampleRequest(prompt_of(model, word), LETTERS + 2, seed=derive_seed(0, "validate", place))
        for place, word in enumerate(words)
    ]
    found = engine.generate(requests)
    right = [c.tokens == answer_of(model, word) for c, word in zip(found, words, strict=True)]
    return sum(right) / len(words)


class Adam:
    """Adam with a rise and a fall."""

    def __init__(self, parameters: list[torch.nn.Parameter], settings: Settings) -> None:
        self.parameters, self.s, self.done = parameters, settings, 0
        self.optimizer = torch.optim.AdamW(
            parameters, lr=settings.rate, betas=(0.9, settings.beta2), weight_decay=0.0, foreach=True
        )

    def step(self, loss: Tensor, total: int) -> None:
        """Follow a loss's gradient once."""
        self.done += 1
        rise = self.done / self.s.rise
        fall = 1 - (1 - self.s.fall_to) * (self.done - 1) / total
        for group in self.optimizer.param_groups:
            group["lr"] = self.s.rate * min(1.0, rise, fall)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.s.max_norm)
        self.optimizer.step()


def rewards_of(words: list[str], tokens: list[tuple[int, ...]], model: LanguageModel, s: Settings) -> Tensor:
    """Share of the places that are right (1 only if all is), or 0/1."""
    found = []
    for word, written in zip(words, tokens, strict=True):
        answer = answer_of(model, word)
        if s.partial:
            same = sum(a == b for a, b in zip(written, answer, strict=False))
            found.append(same / len(answer))
        else:
            found.append(float(written == answer))
    return torch.tensor(found)


def run(seed: int, s: Settings, *, log: bool) -> dict[str, float]:
    """Train one seed."""
    clock = Clock()
    begin = time.process_time()
    rng = numpy_generator(seed, "reverse", purpose="words")
    with tempfile.TemporaryDirectory() as folder, clock.on("warm-up"):
        shape = SmallModelShape(s.d_model, s.layers, s.heads, init_scale=s.init_scale, context_length=64)
        make_small_model(Path(folder) / "m", alphabet=ALPHABET, shape=shape, seed=seed)
        model = load_language_model("m", base_dir=Path(folder))
        words = draw_words(rng, s.warm_up_steps * s.warm_up_batch)
        shown = [Demonstration(prompt_of(model, w), answer_of(model, w)) for w in words]
        losses = warm_up(
            model, shown, steps=s.warm_up_steps, learning_rate=s.warm_up_rate,
            batch_size=s.warm_up_batch, seed=seed, until=s.warm_up_until,
        )  # fmt: skip
    engine = InProcessEngine(model)
    tests = draw_words(numpy_generator(0, "reverse", purpose="test"), 500)
    before = exact_match(model, engine, tests)
    reference = model.reference()
    optimizer = Adam(model.parameters(), s)
    total = s.steps * s.epochs * s.minibatches
    for step in range(s.steps):
        with clock.on("generate"):
            tasks = draw_words(rng, s.tasks)
            words = [w for w in tasks for _ in range(s.group)]
            prompts = {w: prompt_of(model, w) for w in tasks}
            requests = [
                SampleRequest(prompts[w], LETTERS + 2, seed=derive_seed(seed, "rollout", step, str(k)))
                for k, w in enumerate(words)
            ]
            found = engine.generate(requests)
        with clock.on("reward"):
            rewards = rewards_of(words, [c.tokens for c in found], model, s)
            groups = rewards.view(s.tasks, s.group)
            centred = groups - groups.mean(1, keepdim=True)
            advantages = (centred / (groups.std(1, keepdim=True) + 1e-6)).flatten()
            rows = [(*r.prompt, *c.tokens) for r, c in zip(requests, found, strict=True)]
            longest = max(map(len, rows))
            ids = torch.tensor([(*row, *(0,) * (longest - len(row))) for row in rows])
            lengths = torch.tensor([len(row) for row in rows])
            attention = torch.arange(longest) < lengths[:, None]
            chosen = attention.clone()
            chosen[:, : LETTERS + 3] = False
            old = torch.zeros(ids.shape)
            old[chosen] = torch.tensor([p for c in found for p in c.log_probs])
        if s.kl:
            with clock.on("reference"), torch.no_grad():
                anchor = reference.score(ids, attention, chosen).log_probs
        for _ in range(s.epochs):
            for part in torch.arange(len(rows)).chunk(s.minibatches):
                with clock.on("score"):
                    now = model.score(ids[part], attention[part], chosen[part]).log_probs
                with clock.on("update"):
                    ratio = (now - old[part]).exp()
                    gain = advantages[part][:, None]
                    loss = -torch.minimum(
                        ratio * gain, ratio.clamp(1 - s.clip_low, 1 + s.clip_high) * gain
                    )
                    if s.kl:
                        difference = anchor[part] - now
                        loss = loss + s.kl * (difference.exp() - difference - 1)
                    loss = (loss * chosen[part]).sum() / chosen[part].sum()
                    optimizer.step(loss, total)
        if log and step % 50 == 49:
            print(f"  {step + 1}: reward {rewards.mean():.3f} exact {(rewards == 1).float().mean():.3f}"
                  f" cpu {time.process_time() - begin:.1f}", flush=True)
    spent = time.process_time() - begin
    with clock.on("validate"):
        after = exact_match(model, engine, tests)
    times = {f"cpu/{name}": round(seconds, 2) for name, seconds in clock.seconds.items()}
    return {"seed": seed, "supervised": len(losses), "before": before, "after": after, "cpu_s": round(spent, 1), **times}


def main() -> None:
    """Run the seeds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--log", action="store_true")
    for each in fields(Settings):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(**{each.name: getattr(given, each.name) for each in fields(Settings)})
    print(json.dumps(asdict(settings)))
    results = []
    for seed in range(given.first, given.first + given.seeds):
        results.append(run(seed, settings, log=given.log))
        print(json.dumps(results[-1]), flush=True)
    after = [result["after"] for result in results]
    print(f"exact match: mean {statistics.mean(after):.3f}, worst {min(after):.3f};"
          f" before at most {max(r['before'] for r in results):.3f};"
          f" CPU at most {max(r['cpu_s'] for r in results):.1f} s")


if __name__ == "__main__":
    main()
