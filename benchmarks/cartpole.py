"""PPO on CartPole: Ratchet, TorchRL's trainer, Stable-Baselines3 and plain torch.

Run with ``python benchmarks/cartpole.py [--seeds N] [--minibatch 64]``. Each seed of each library
runs in a separate single-threaded process, one at a time in rotation. The table shows medians over
seeds of frames per CPU-second (median over iterations) and of the CPU-seconds to a mean return of
475 with greedy actions.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from separate_process import run_player

NAMES = ("ratchet", "torchrl", "stable-baselines3", "plain torch")
SCRIPT = Path(__file__).with_name("cartpole_players.py")


def show(results: dict[str, list[dict[str, Any]]], minibatch: int) -> Table:
    """Build the table, with ratios to Ratchet."""
    table = Table(
        "library",
        "frames per CPU-second",
        "ratchet's speed-up",
        "CPU-seconds to 475",
        "frames to 475",
        "solved",
        title=f"PPO on CartPole-v1, minibatch {minibatch}, medians (smallest to largest)",
    )
    ours = statistics.median(row["rate"] for row in results["ratchet"])
    for name, rows in results.items():
        rates = sorted(row["rate"] for row in rows)
        solved = sorted(row["seconds"] for row in rows if row["seconds"] is not None)
        frames = [row["frames"] for row in rows if row["seconds"] is not None]
        spread = f" ({solved[0]:.1f} to {solved[-1]:.1f})" if solved else ""
        table.add_row(
            name,
            f"{statistics.median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})",
            f"{ours / statistics.median(rates):.2f}",
            f"{statistics.median(solved):.1f}{spread}" if solved else "–",
            f"{statistics.median(frames):,.0f}" if frames else "–",
            f"{len(solved)} of {len(rows)}",
        )
    return table


def main() -> None:
    """Run every library with every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES)
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.only}
    console = Console()
    for seed in range(arguments.seeds):
        for name in arguments.only:
            results[name].append(run_player(SCRIPT, name, seed, arguments.minibatch))
            console.print(f"seed {seed}  {name:18s} {results[name][-1]}")
    console.print(show(results, arguments.minibatch))


if __name__ == "__main__":
    main()
