"""Tokens per CPU-second of the engine ``vllm`` and the built-in one for the same requests.

They alternate, on one CPU thread. The models are randomly initialised, and end completions by
chance. After ``make setup-vllm``, run ``OMP_NUM_THREADS=1 python benchmarks/vllm_engine.py
[REQUESTS TOKENS]``.
"""

from __future__ import annotations

import statistics
import string
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from ratchet.language_models.engines.rollouts import RolloutEngine, SampleRequest, make_engine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model

ROUNDS = 3
ENGINES: dict[str, dict[str, Any]] = {"in_process": {}, "vllm": {"enforce_eager": True}}
SHAPES = (
    SmallModelShape(d_model=64, layers=4, heads=2),
    SmallModelShape(d_model=512, layers=12, heads=8),
    SmallModelShape(d_model=1024, layers=6, heads=16),
)


def main() -> None:
    """Print a row for each model."""
    count, tokens = map(int, sys.argv[1:] or (64, 64))
    torch.set_num_threads(1)
    requests = [SampleRequest((5, 6 + seed % 20), tokens, seed) for seed in range(count)]
    table = Table(title=f"{count} completions of at most {tokens} tokens, tokens per CPU-second")
    for column in ("weights", *ENGINES, "ratio"):
        table.add_column(column, justify="right")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            table.add_row(*_row(Path(folder) / "model", shape, requests))
    Console().print(table)


def _row(folder: Path, shape: SmallModelShape, requests: Sequence[SampleRequest]) -> list[str]:
    """Return the cells of a model."""
    make_small_model(folder, alphabet=string.ascii_lowercase, shape=shape)
    model = load_language_model(folder, base_dir=folder)
    engines = [make_engine(name, model, options) for name, options in ENGINES.items()]
    for engine in engines:
        engine.generate(requests)  # starts vLLM, warms caches
    rounds = [[_rate(engine, requests) for engine in engines] for _ in range(ROUNDS)]
    engines[1].close()  # type: ignore[attr-defined]
    rates = [statistics.median(each) for each in zip(*rounds, strict=True)]
    millions = sum(weight.numel() for weight in model.all_parameters()) / 1e6
    return [
        f"{millions:.1f} M",
        *(f"{rate:,.0f}" for rate in rates),
        f"{rates[1] / rates[0]:.2f} ×",
    ]


def _rate(engine: RolloutEngine, requests: Sequence[SampleRequest]) -> float:
    """Return the tokens per second of CPU time."""
    start = _cpu_seconds()
    tokens = sum(len(completion.tokens) for completion in engine.generate(requests))
    return tokens / (_cpu_seconds() - start)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of vLLM's."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


if __name__ == "__main__":
    main()
