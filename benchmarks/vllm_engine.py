"""Tokens per second of vLLM and of the built-in engine for the same requests, on the CPU.

Both generate to the end of the completion, in turns. Run ``make setup-vllm``, then ``python
benchmarks/vllm_engine.py [REQUESTS [TOKENS]]``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.table import Table

from ratchet.language_models.engines.rollouts import RolloutEngine, SampleRequest, make_engine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model

ROUNDS = 3
ENGINES = ("in_process", "vllm")
SHAPES = {
    "0.3 M": SmallModelShape(d_model=64, layers=4, heads=2),
    "25 M": SmallModelShape(d_model=512, layers=12, heads=8),
    "81 M": SmallModelShape(d_model=1024, layers=12, heads=16),
}


def main() -> None:
    """Print a row for each model."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    torch.set_num_threads(1)
    columns = [f"{engine}, {unit}" for engine in ENGINES for unit in ("tokens/s", "per CPU-second")]
    table = Table("weights", *columns, "vllm / in_process", "per CPU-second", title=f"{count} × {tokens}")
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            rates = _measure(Path(folder) / "model", shape, _requests(count, tokens))
        ratios = [b / a for a, b in zip(*rates, strict=True)]
        cells = [f"{rate:,.0f}" for engine in rates for rate in engine]
        table.add_row(name, *cells, *(f"{ratio:.2f} ×" for ratio in ratios))
    Console(width=140).print(table)


def _requests(count: int, tokens: int) -> list[SampleRequest]:
    return [SampleRequest((5, 6 + seed % 20), tokens, seed) for seed in range(count)]


def _measure(
    folder: Path, shape: SmallModelShape, requests: Sequence[SampleRequest]
) -> list[tuple[float, float]]:
    """Return each engine's median tokens per second of wall time and of CPU time."""
    make_small_model(folder, alphabet="abcdefghijklmnopqrstuvwxyz", shape=shape)
    model = load_language_model(folder, base_dir=folder)
    engines = [make_engine(name, model) for name in ENGINES]
    for engine in engines:
        engine.generate(requests)  # starts, compiles
    rounds = [[_rate(engine, requests) for engine in engines] for _ in range(ROUNDS)]
    engines[1].close()
    return [tuple(map(statistics.median, zip(*rates))) for rates in zip(*rounds)]


def _rate(engine: RolloutEngine, requests: Sequence[SampleRequest]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), _cpu_seconds()
    tokens = sum(len(completion.tokens) for completion in engine.generate(requests))
    return tokens / (time.perf_counter() - wall), tokens / (_cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of vLLM's."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


if __name__ == "__main__":
    main()
