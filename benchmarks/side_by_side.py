"""What several one-thread processes on one machine do to each other's frames per CPU-second.

Run with ``python benchmarks/side_by_side.py [--processes 2] [--rounds 5]``. Each trains PPO on
CartPole for a fixed number of iterations; alone and side by side take turns, so that what else the
machine does falls on both. More processes than cores share caches and get less each.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

NUM_ITERATIONS = 12


def train(seed: int) -> None:
    """Be one of the processes: build, warm up, wait for a line, train, print the rate."""
    import torch
    from cartpole_players import FRAMES, play_ratchet

    torch.set_num_threads(1)
    player = play_ratchet(seed, minibatch=64)
    next(player)
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    for _ in itertools.islice(player, NUM_ITERATIONS):
        pass
    print(NUM_ITERATIONS * FRAMES / (time.process_time() - before))


def run(count: int) -> list[float]:
    """Train ``count`` processes at once; return the frames per CPU-second of each."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--train", str(seed)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(count)
    ]
    for process in processes:  # built and warm; now all begin at once
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [float(process.communicate()[0]) for process in processes]


def main() -> None:
    """Print medians and their ratio, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", type=int, metavar="SEED", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train)
    else:
        compare(arguments.processes, arguments.rounds)


def compare(processes: int, rounds: int) -> None:
    """Let one and several play in turn."""
    alone: list[float] = []
    together: list[float] = []
    for _ in range(rounds):
        alone += run(1)
        together += run(processes)
    one, many = statistics.median(alone), statistics.median(together)
    table = Table("processes", "frames per CPU-second of each", "of one alone")
    for count, rates in ((1, alone), (processes, together)):
        shown = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        table.add_row(str(count), shown, f"{statistics.median(rates) / one:.2f}")
    load = os.getloadavg()[0]
    Console().print(table)
    Console().print(f"{os.cpu_count()} cores, load at the end {load:.1f}, ratio {many / one:.2f}")


if __name__ == "__main__":
    main()
