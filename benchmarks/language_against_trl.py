"""GRPO on reversed words: Ratchet and TRL's ``GRPOTrainer`` in one run.

Run with ``python benchmarks/language_against_trl.py [--seeds N] [--steps N]``. Each seed of each
library runs in a separate single-threaded process, in rotation. Both train the same small Llama
with the settings of ``experiments/reverse_grpo.yaml``, from the same weights and prompts. TRL uses
float32 without checkpointing, logging or saving, and one batch for all completions of a step.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, median
from typing import TypeAlias

from rich.console import Console
from rich.table import Table
from separate_process import run_player

NAMES = ("ratchet", "trl")
SCRIPT = Path(__file__).with_name("language_players.py")
BARS = """\
Targets: exact match from at most .05 to a mean of at least .8 and a minimum of .5, in 60
CPU-seconds per seed; twice TRL's completions per CPU-second."""

Figures: TypeAlias = dict[str, float]


def show(results: dict[str, list[Figures]], steps: int) -> Table:
    """Build the table of means, medians and each seed's results."""
    table = Table(
        "library",
        "exact match before",
        "after, mean",
        "worst",
        "completions per CPU-second",
        "ratchet's speed-up",
        "CPU-seconds per seed, maximum",
        title=f"GRPO on words of 6 of 8 letters, {steps} steps of 16 × 8 completions",
    )
    ours = median(row["rate"] for row in results["ratchet"])
    for name, rows in results.items():
        after = [row["after"] for row in rows]
        rates = [row["rate"] for row in rows]
        table.add_row(
            name,
            f"{fmean(row['before'] for row in rows):.3f}",
            f"{fmean(after):.3f} ({', '.join(f'{one:.2f}' for one in after)})",
            f"{min(after):.3f}",
            f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
            f"{ours / median(rates):.2f}",
            f"{max(row['seconds'] for row in rows):.1f}",
        )
    return table


def main() -> None:
    """Train both libraries with each seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    results: dict[str, list[Figures]] = {name: [] for name in NAMES}
    console = Console(width=150)
    for seed in range(arguments.seeds):
        for name in NAMES:
            results[name].append(run_player(SCRIPT, name, seed, arguments.steps))
            rounded = {part: float(f"{n:.4g}") for part, n in results[name][-1].items()}
            console.print(f"seed {seed}  {name:8s} {rounded}")
    console.print(show(results, arguments.steps))
    console.print(BARS)


if __name__ == "__main__":
    main()
