"""Write ``rliable_reference.json``: results of rliable and statsmodels on small samples.

Run it manually in a separate environment, since rliable depends on arch and seaborn:
    pip install rliable==1.2.0 arch==7.2.0 'pandas<3' statsmodels
    python tests/statistics/rliable_reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics
from statsmodels.duration.survfunc import SurvfuncRight
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower

REPS = 100_000
THRESHOLDS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]


def scores() -> dict[str, np.ndarray]:
    """Return runs × tasks: six runs of one algorithm, five of the other, four different tasks."""
    rng = np.random.default_rng(11)
    first = rng.normal([0.3, 0.6, 0.9, 1.1], [0.05, 0.2, 0.1, 0.3], size=(6, 4))
    second = rng.normal([0.2, 0.65, 0.7, 0.9], [0.1, 0.1, 0.2, 0.2], size=(5, 4))
    return {"first": first.round(3), "second": second.round(3)}


def curves() -> np.ndarray:
    """Return rising curves: runs × tasks × steps."""
    rng = np.random.default_rng(12)
    rise = 1 - np.exp(-np.arange(8) / 3)
    return (rise + rng.normal(0, 0.1, size=(6, 4, 8))).round(3)


def survival() -> tuple[list[float], list[int]]:
    """Return times to a threshold; some runs are censored."""
    rng = np.random.default_rng(13)
    times, ends = rng.exponential(20, 31).round(1), rng.uniform(10, 60, 31).round(1)
    return np.minimum(times, ends).tolist(), (times <= ends).astype(int).tolist()


def main() -> None:
    """Compute all references and write the file."""
    given, learned = scores(), curves()
    np.random.seed(0)  # noqa: NPY002 -- rliable uses the global generator
    aggregates = {
        "iqm": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "optimality_gap": metrics.aggregate_optimality_gap,
    }
    points, ends = library.get_interval_estimates(
        given, lambda x: np.array([f(x) for f in aggregates.values()]), reps=REPS
    )
    profiles, profile_ends = library.create_performance_profile(given, THRESHOLDS, reps=20_000)
    better, better_ends = library.get_interval_estimates(
        {"pair": [given["first"], given["second"]]},
        lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
        reps=20_000,
    )
    iqm, iqm_ends = library.get_interval_estimates(
        {"curve": learned},
        lambda x: np.array([metrics.aggregate_iqm(x[..., k]) for k in range(x.shape[-1])]),
        reps=20_000,
    )
    times, reached = survival()
    left = SurvfuncRight(times, reached)
    chances = [0.011, 0.2, 0.02, 0.04, 0.012]
    content = {
        "scores": {name: each.tolist() for name, each in given.items()},
        "aggregates": {
            name: {what: [points[name][k], *ends[name][:, k]] for k, what in enumerate(aggregates)}
            for name in given
        },
        "thresholds": THRESHOLDS,
        "profiles": {
            name: [profiles[name].tolist(), *profile_ends[name].tolist()] for name in given
        },
        "probability_of_improvement": [better["pair"][0], *better_ends["pair"][:, 0]],
        "curves": learned.tolist(),
        "iqm_of_curves": [iqm["curve"].tolist(), *iqm_ends["curve"].tolist()],
        "times": times,
        "reached": reached,
        "median": [left.quantile(0.5), *left.quantile_ci(0.5, alpha=0.05, method="cloglog")],
        "chances": chances,
        "holm": multipletests(chances, method="holm")[1].tolist(),
        "power_unpaired": [
            [d, n, TTestIndPower().power(d, n, 0.05)]
            for d in (0.2, 0.5, 0.8, 1.2)
            for n in (3, 5, 10, 26)
        ],
        "power_paired": [
            [d, n, TTestPower().power(d, n, 0.05)]
            for d in (0.2, 0.5, 0.8, 1.2)
            for n in (3, 5, 10, 26)
        ],
        "needed_unpaired": [
            [d, TTestIndPower().solve_power(d, None, 0.05, 0.8)] for d in (0.2, 0.5, 0.8, 1.2)
        ],
        "needed_paired": [
            [d, TTestPower().solve_power(d, None, 0.05, 0.8)] for d in (0.2, 0.5, 0.8, 1.2)
        ],
    }
    path = Path(__file__).with_suffix(".json")
    plain = json.loads(json.dumps(content, default=float), parse_float=lambda x: round(float(x), 6))
    path.write_text(json.dumps(plain) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
