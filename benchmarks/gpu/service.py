"""Concurrent chats with a model of 0.5 B at the embedded service, by HTTP."""

from __future__ import annotations

import asyncio
import sys
import time

from workbench import Bench, bench, show

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.types import ChatMessage, ChatRequest
from ratchet.service import EmbeddedService


def main() -> None:
    """Print the tokens per second of two rounds."""
    with bench(sys.argv[1:]) as sizes:
        model = sizes.write_model("0.5b")
        with EmbeddedService.start(sizes.folder / "home", model=str(model)) as service:
            rows = asyncio.run(rounds(sizes, service))
        show("The embedded service", rows)


async def rounds(sizes: Bench, service: EmbeddedService) -> list[dict[str, object]]:
    """Send all chats concurrently, twice."""
    client, rows = ChatClient(Endpoint(base_url=service.url)), list[dict[str, object]]()
    texts = [" ".join(f"w{token}" for token in prompt) for prompt in sizes.prompts(sizes.sequences)]
    requests = [
        ChatRequest(service.model, (ChatMessage("user", text),), max_tokens=sizes.new, seed=seed)
        for seed, text in enumerate(texts)
    ]
    for label in ("first", "second"):
        begin = time.perf_counter()
        completions = await asyncio.gather(*map(client.complete, requests))
        seconds = time.perf_counter() - begin
        tokens = sum(completion.completion_tokens for completion in completions)
        rows.append({"round": label, "chats": len(requests), "tokens/s": tokens / seconds})
    return rows


if __name__ == "__main__":
    main()
