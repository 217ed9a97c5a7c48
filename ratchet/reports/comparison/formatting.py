"""Formats of a comparison's values: text for tables and plain data for JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ratchet.reports.comparison.options import MIN_SEEDS
from ratchet.reports.comparison.pairs import Pair
from ratchet.reports.comparison.runs import Grouping
from ratchet.statistics.estimate import Band, Estimate

_SHARE = re.compile(r"accuracy|exact_match|_fraction$|_proportion$")
TOO_FEW = f"n < {MIN_SEEDS}"
"""Stands for an interval over too few seeds."""


def is_share(metric: str) -> bool:
    """Return whether a recorded metric is a share by its name, displayed in percent."""
    return _SHARE.search(metric) is not None


def number(value: float, *, percent: bool = True) -> str:
    """Format a score, in percent if it is a share."""
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def difference(value: float, *, percent: bool = True) -> str:
    """Format a signed difference, in percentage points for shares."""
    return ("−" if value < 0 else "+") + number(abs(value), percent=percent)


def interval(estimate: Estimate, *, percent: bool = True, form: Callable[..., str] = number) -> str:
    """Format an interval, whose ends ``form`` formats, or state that seeds are too few."""
    if math.isnan(estimate.low):
        return TOO_FEW
    ends = (estimate.low, estimate.high)
    return ", ".join(form(end, percent=percent) for end in ends).join("[]")


def chance(estimate: Estimate | None) -> str:
    """Format a probability of improvement; a dash for a group with itself."""
    if estimate is None:
        return "–"
    text = f"{100 * estimate.value:.0f}"
    if math.isnan(estimate.low):
        return text
    return f"{text} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def is_different(estimate: Estimate | None) -> bool:
    """Return whether the interval of a probability of improvement excludes one half."""
    return estimate is not None and (estimate.low > 0.5 or estimate.high < 0.5)


def group_heading(grouping: Grouping) -> str:
    """Return the heading of the group column."""
    paths = grouping.paths
    return paths[0] if len(paths) == 1 else "group"


def position(value: float) -> str:
    """Format a number of iterations, frames, tokens or calls; a dash for infinity."""
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def position_interval(estimate: Estimate) -> str:
    """Format an interval of positions, open at infinity."""
    if math.isnan(estimate.low):
        return TOO_FEW
    high = f"{position(estimate.high)}]" if math.isfinite(estimate.high) else "∞)"
    return f"[{position(estimate.low)}, {high}"


def p_value(value: float | None, least: float | None = None) -> str:
    """Format a p-value, with the smallest attainable one if that is given."""
    if value is None:
        return "–"
    text = "< 0.001" if value < 0.001 else f"{value:.3f}"
    return text if least is None else f"{text} (≥ {least:.3f})"


def pair_data(pair: Pair) -> dict[str, Any]:
    """Return a pair as data."""
    return {
        "first": pair.first,
        "second": pair.second,
        "difference": estimate_data(pair.difference),
        "paired": pair.paired,
        "pairing": pair.pairing,
        "seeds": pair.num_seeds,
        "p": pair.chance,
        "p_of_all_pairs": pair.adjusted,
        "smallest_p": pair.least,
        "permutations": pair.num_permutations,
        "all_permutations": pair.is_exact,
        "told_apart": pair.is_told_apart,
        "power": None
        if pair.power is None
        else asdict(pair.power) | {"detectable": _plain(pair.power.detectable)},
    }


def band_data(band: Band) -> dict[str, Any]:
    """Return a curve with its interval as data."""
    return {
        "positions": list(band.positions),
        "values": list(map(_plain, band.values)),
        "lows": list(map(_plain, band.lows)),
        "highs": list(map(_plain, band.highs)),
        "n": band.n,
    }


def estimate_data(estimate: Estimate) -> Mapping[str, Any]:
    """Return an estimate as data; non-finite numbers are None."""
    return {
        "value": _plain(estimate.value),
        "low": _plain(estimate.low),
        "high": _plain(estimate.high),
        "n": estimate.n,
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
