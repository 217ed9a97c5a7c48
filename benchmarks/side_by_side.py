"""Slowdown of several concurrent single-threaded training processes on one machine.

Run with ``python benchmarks/side_by_side.py [--processes 2] [--rounds 5]``. Each process trains PPO
on CartPole for a fixed number of iterations. One and several processes take turns, so that other
load on the machine affects both. More processes than cores share caches and are each slower.
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
    """Build a trainer, warm up, wait for a line on stdin, train, and print the rate."""
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
    """Train in ``count`` concurrent processes; return the frames per CPU-second of each."""
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
    for process in processes:  # all are warm; now they start together
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [float(process.communicate()[0]) for process in processes]


def main() -> None:
    """Print medians and their ratio, or train in one of the processes."""
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
    """Run one and several processes in turn and print the table."""
    alone: list[float] = []
    together: list[float] = []
    for _ in range(rounds):
        alone += run(1)
        together += run(processes)
    one, many = statistics.median(alone), statistics.median(together)
    table = Table("processes", "frames per CPU-second of each", "relative to one process")
    for count, rates in ((1, alone), (processes, together)):
        summary = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        table.add_row(str(count), summary, f"{statistics.median(rates) / one:.2f}")
    load = os.getloadavg()[0]
    Console().print(table)
    Console().print(f"{os.cpu_count()} cores, load at the end {load:.1f}, ratio {many / one:.2f}")


if __name__ == "__main__":
    main()
