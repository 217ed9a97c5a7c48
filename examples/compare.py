"""Compare the members of a sweep from Python: groups, intervals over seeds.

Run it:  python examples/compare.py [SWEEP] [RUNS]      (after python examples/sweep.py)
"""

from __future__ import annotations

import sys
from pathlib import Path

from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.comparison.comparison import Comparison
from ratchet.reports.comparison.files import write_comparison
from ratchet.reports.comparison.formatting import interval
from ratchet.tracking import find_run
from ratchet.tracking.sweep_folder import read_sweep


def main(sweep: str = "alone_or_not", runs: str = "runs") -> Comparison:
    """Print interquartile means, differences and learning curves; write the comparison page."""
    record = read_sweep(runs, sweep)
    if record is None:
        raise SystemExit(f"No sweep {sweep!r} in {runs}: run examples/sweep.py first.")
    comparison = compare_runs([find_run(runs, member.run_id) for member in record.members])
    (accuracy,) = comparison.of_kind("accuracy", "test")
    for row in accuracy.rows:
        print(f"{row.group.label}: {row.iqm.value:.1%} {interval(row.iqm)}")
    for pair in accuracy.pairs:
        print(f"{pair.first} − {pair.second}: {pair.difference.value:+.1%}, p = {pair.chance}")
        if pair.power is not None:
            print(f"  detectable with {pair.num_seeds} seeds each: {pair.power.detectable:.1%}")
    for learning in comparison.learning:
        for curve in learning.rows:
            print(f"{curve.group.label}: {learning.metric} over {learning.axis}: {curve.area}")
    print(write_comparison(comparison, Path(runs) / record.sweep_id).page)
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:])
