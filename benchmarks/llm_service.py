"""Throughput of the embedded model service: concurrent against sequential chat requests.

Both send the same requests, with the same seeds, to one local service, in turns. Run with ``python
benchmarks/llm_service.py [CHATS [HOME [TOKENS]]]``; if HOME has no base model, it is built first.
TOKENS limits the length of completions.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.types import ChatRequest
from ratchet.scenarios.code_validation.tiny_model.corpus import expert_system
from ratchet.scenarios.code_validation.tiny_model.players import draw_exercise
from ratchet.service import EmbeddedService

ROUNDS = 3


def main() -> None:
    """Print the table."""
    chats = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    with tempfile.TemporaryDirectory() as folder:
        home = sys.argv[2] if len(sys.argv) > 2 else folder
        tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 128
        with EmbeddedService.start(home) as service:
            requests = _requests(service.model, chats, tokens)
            alone, together = asyncio.run(_measure(service.url, requests))
    table = Table("chats", "chats per second, sequential", "concurrent", "ratio")
    ratios = [a / b for a, b in zip(alone, together, strict=True)]
    spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    rates = [f"{chats / statistics.median(seconds):.1f}" for seconds in (alone, together)]
    table.add_row(str(chats), *rates, spread)
    Console().print(table)


async def _measure(url: str, requests: list[ChatRequest]) -> tuple[list[float], list[float]]:
    """Measure the seconds of each round, sequential and concurrent in turns."""
    alone, together = [], []
    client = ChatClient(Endpoint(base_url=url))
    await asyncio.gather(*map(client.complete, requests))
    for _ in range(ROUNDS):
        start = time.perf_counter()
        one_by_one = [await client.complete(request) for request in requests]
        alone.append(time.perf_counter() - start)
        start = time.perf_counter()
        at_once = await asyncio.gather(*map(client.complete, requests))
        together.append(time.perf_counter() - start)
        if list(at_once) != one_by_one:
            raise AssertionError("completions depend on the batch")
    return alone, together


def _requests(model: str, chats: int, tokens: int) -> list[ChatRequest]:
    """Build requests for experts' arguments, each about a different program."""
    rng = np.random.default_rng(0)
    prompts = [expert_system(draw_exercise(rng), "accept") for _ in range(chats)]
    return [
        ChatRequest(model, (prompt,), max_tokens=tokens, seed=seed)
        for seed, prompt in enumerate(prompts)
    ]


if __name__ == "__main__":
    main()
