"""CPU time of intervals over runs, compared with rliable, which computes resamples in a loop.

Run with ``python benchmarks/bootstrap.py``, in an environment that also has rliable (1.2.0 requires
``arch==7.2.0`` and ``pandas<3``). CPU time of this process on one thread; medians of three.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable

import numpy as np
from rliable import library, metrics

from ratchet.statistics import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)

NUM_RUNS, NUM_TASKS, RESAMPLES = 20, 5, 2_000
THRESHOLDS = np.linspace(0, 1, 101)


def seconds(work: Callable[[], object]) -> float:
    """Return the median CPU time of three calls, after a warm-up call."""
    work()
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    """Print both CPU times and their ratios."""
    rng = np.random.default_rng(0)
    first, second = rng.random((2, NUM_RUNS, NUM_TASKS))
    ours, other = first.T.tolist(), second.T.tolist()
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "IQM": (
            lambda: stratified_interval(ours, interquartile_mean, num_resamples=RESAMPLES),
            lambda: library.get_interval_estimates(
                {"a": first}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=RESAMPLES
            ),
        ),
        "probability of improvement": (
            lambda: probability_of_improvement(ours, other, num_resamples=RESAMPLES),
            lambda: library.get_interval_estimates(
                {"a": [first, second]},
                lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
                reps=RESAMPLES,
            ),
        ),
        "profile at 101 thresholds": (
            lambda: performance_profile(ours, THRESHOLDS.tolist(), num_resamples=RESAMPLES),
            lambda: library.create_performance_profile({"a": first}, THRESHOLDS, reps=RESAMPLES),
        ),
    }
    print(f"{NUM_RUNS} runs of {NUM_TASKS} tasks, {RESAMPLES:,} resamples")
    for name, (mine, peer) in pairs.items():
        fast, slow = seconds(mine), seconds(peer)
        print(f"{name}: {1000 * fast:.1f} ms; rliable {1000 * slow:,.0f} ms, {slow / fast:.0f}×")


if __name__ == "__main__":
    main()
