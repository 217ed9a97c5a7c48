"""Speed of text rollouts against a slow service.

200 games of nip with 9 rounds; a service in a separate process responds to each call after 200 ms.
Ratchet is compared with the longest chain of calls, which is a lower bound, and with a common
baseline: a pool of four workers, each playing one game at a time with the SDK's blocking client.
Run with ``python benchmarks/text_rollouts.py``.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

SECONDS = 0.2
GAMES, ROUNDS = 200, 9
PEER_WORKERS, PEER_GAMES = 4, 8


def serve(ready: Connection) -> None:
    """Respond to each request after a delay, in the format of the agent given by its model name."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = [
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ]
                body = await reader.readexactly(length)
                await asyncio.sleep(SECONDS)
                writer.write(_ANSWERS[b'"verifier-model"' in body])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1000)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def _answer(text: str) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    content = json.dumps({**body, "choices": [choice], "usage": usage}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


_ANSWERS = {
    True: _answer("Question: " + "is that so in this case? " * 10),
    False: _answer("Answer: " + "it is so in that case. " * 10),
}


def ours(url: str, folder: str) -> tuple[float, float]:
    """Play all games; return the wall time and this process's CPU time in seconds."""
    from ratchet.parameters import ExperimentSettings, HyperParameters
    from ratchet.scenarios.registry import build_scenario_instance
    from trainers.registry import trainer_class

    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        code_validation={"num_train": GAMES, "num_test": 2, "prompt_templates": "full"},
        rl={"num_iterations": 1},
        nip_protocol={"max_message_rounds": ROUNDS},
        agents={
            "_default": {"base_url": url},
            "prover": {"model_name": "prover-model"},
            "verifier": {"model_name": "verifier-model"},
        },
    )
    settings = ExperimentSettings(home=folder, num_rollout_workers=GAMES)
    kind = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type="pure_text")
    trainer = kind(hyper_params, instance, settings)
    trainer.initial_state()
    wall, cpu = time.perf_counter(), time.process_time()
    rollouts, usage = trainer.sample_rollouts(0, Path(folder) / f"{time.time_ns()}.jsonl")
    spent = time.perf_counter() - wall, time.process_time() - cpu
    assert usage.total.calls == GAMES * ROUNDS, usage.total
    assert bool(rollouts["agents", "valid"][rollouts["agents", "active"]].all())
    return spent


def pool(url: str) -> float:
    """Play some games with four workers; return the extrapolated seconds of all games."""
    from openai import OpenAI

    def play(_: int) -> None:
        client = OpenAI(base_url=url, api_key="none")
        messages = [{"role": "system", "content": "You check programs. " * 100}]
        for round in range(ROUNDS):
            name = "prover-model" if round % 2 else "verifier-model"
            answer = client.chat.completions.create(model=name, messages=messages)  # type: ignore[arg-type]
            messages.append({"role": "user", "content": answer.choices[0].message.content or ""})

    begin = time.perf_counter()
    with ThreadPoolExecutor(PEER_WORKERS) as workers:
        list(workers.map(play, range(PEER_GAMES)))
    return (time.perf_counter() - begin) * GAMES / PEER_GAMES


def main() -> None:
    """Print the table."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(sending,), daemon=True
    )
    process.start()
    url = f"http://127.0.0.1:{receiving.recv()}/v1"
    with tempfile.TemporaryDirectory() as folder:
        ours(url, folder)  # warm: imports, certificates, code
        runs = sorted(ours(url, folder) for _ in range(3))
        peer = pool(url)
    process.terminate()
    wall, cpu = runs[1]
    chain = ROUNDS * SECONDS
    table = Table(title=f"{GAMES} games of {ROUNDS} rounds, {SECONDS * 1000:.0f} ms per call")
    table.add_column("metric")
    table.add_column("measured", justify="right")
    table.add_column("wanted", justify="right")
    table.add_row("wall time (median of 3)", f"{wall:.2f} s", "")
    table.add_row("relative to the longest chain", f"{wall / chain:.2f} ×", "≤ 1.3 ×")
    table.add_row(f"speed-up over {PEER_WORKERS} workers", f"{peer / wall:.1f} ×", "≥ 20 ×")
    table.add_row("CPU time per call", f"{cpu / GAMES / ROUNDS * 1000:.2f} ms", "≤ 3 ms")
    Console().print(table)


if __name__ == "__main__":
    main()
