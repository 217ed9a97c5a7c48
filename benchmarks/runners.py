"""Overhead of each runner: many small members of a sweep, in local processes and on clusters.

Run it with ``python benchmarks/runners.py [--members 40] [--parallel 2] [--runners processes,dask]
[--rounds 3]`` on an idle machine. Members train almost nothing, so that the time consists of the
runner's start and the transfer of members to workers and back. Each round runs the runners in turn,
with separate data and stages. The last column is the ratio of a runner's median time to that of the
first runner.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from many_experiments import SMALL, small_settings

from flows import run_sweep


def seconds(folder: Path, runner: str, members: int, parallel: int) -> float:
    """Return the seconds of a sweep without cache hits."""
    settings = small_settings(folder / "home", folder / runner, runner, parallel)
    begin = time.perf_counter()
    run_sweep(SMALL, {"seed": list(range(members))}, settings, name="small")
    return time.perf_counter() - begin


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runners", default="processes,dask,ray")
    options = parser.parse_args()
    names = options.runners.split(",")
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as home:
        for number in range(options.rounds):
            for name in names:
                folder = Path(home) / str(number)
                duration = seconds(folder, name, options.members, options.parallel)
                times[name].append(duration)
                print(f"round {number + 1}  {name:10} {duration:8.1f} s", flush=True)
    first = statistics.median(times[names[0]])
    print(f"\n{options.members} members, {options.parallel} at a time")
    print(f"{'runner':10} {'median s':>9} {'ms / member':>12} {'/ ' + names[0]:>14}")
    for name in names:
        median = statistics.median(times[name])
        each = 1000 * median / options.members
        print(f"{name:10} {median:9.1f} {each:12.0f} {median / first:14.2f}")


if __name__ == "__main__":
    main()
