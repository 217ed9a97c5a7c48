"""How much faster the embedded model service answers many chats at once than one after the other.

Both ways ask the same questions, with the same seeds, of one service on this machine, in turns.
Run with ``python benchmarks/llm_service.py [CHATS]``.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

import openai
from rich.console import Console
from rich.table import Table

from ratchet.language_models.service.launch import EmbeddedService

ROUNDS = 3
LINES = ("a = 3 + 4", "b = a * 2", "return b - 1")


def main() -> None:
    """Print the table."""
    chats = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    with tempfile.TemporaryDirectory() as home, EmbeddedService.start(home) as service:
        alone, together = asyncio.run(_measure(service, chats))
    table = Table("chats", "chats a second, one after the other", "all at once", "ratio")
    ratios = [a / b for a, b in zip(alone, together, strict=True)]
    spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    rates = [f"{chats / statistics.median(seconds):.1f}" for seconds in (alone, together)]
    table.add_row(str(chats), *rates, spread)
    Console().print(table)


async def _measure(service: EmbeddedService, chats: int) -> tuple[list[float], list[float]]:
    """Measure the seconds of each round, one way and the other in turns."""
    alone, together = [], []
    async with openai.AsyncOpenAI(base_url=service.url, api_key="none", timeout=600) as client:
        await asyncio.gather(*(_ask(client, service.model, seed) for seed in range(chats)))
        for _ in range(ROUNDS):
            start = time.perf_counter()
            one_by_one = [await _ask(client, service.model, seed) for seed in range(chats)]
            alone.append(time.perf_counter() - start)
            start = time.perf_counter()
            at_once = await asyncio.gather(
                *(_ask(client, service.model, seed) for seed in range(chats))
            )
            together.append(time.perf_counter() - start)
            if list(at_once) != one_by_one:
                raise AssertionError("an answer depends on what it was batched with")
    return alone, together


async def _ask(client: openai.AsyncOpenAI, model: str, seed: int) -> str | None:
    question = "Is this right?\n" + "\n".join(LINES[: 1 + seed % len(LINES)])
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        seed=seed,
        max_completion_tokens=48,
    )
    return answer.choices[0].message.content


if __name__ == "__main__":
    main()
