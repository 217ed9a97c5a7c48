"""How a comparison writes numbers, intervals and positions, in all its forms."""

from __future__ import annotations

import math

from ratchet.reports.comparison.groups import Grouping
from ratchet.statistics.estimate import Estimate


def interval(estimate: Estimate, *, percent: bool = True) -> str:
    """Write an interval's ends, or that there is none."""
    if math.isnan(estimate.low):
        return "one seed"
    ends = (estimate.low, estimate.high)
    return ", ".join(number(end, percent=percent) for end in ends).join("[]")


def number(value: float, *, percent: bool = True) -> str:
    """Write a score: in percent if it is a share."""
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def chance(estimate: Estimate | None) -> str:
    """Write a probability of improvement; nothing for a group with itself."""
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
    """Name what tells groups apart."""
    paths = grouping.paths
    return paths[0] if len(paths) == 1 else "group"


def position(value: float) -> str:
    """Write how many iterations, frames, tokens or calls; nothing for infinitely many."""
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def position_interval(estimate: Estimate) -> str:
    """Write between which positions something lies, open where the runs show no end."""
    high = f"{position(estimate.high)}]" if math.isfinite(estimate.high) else "∞)"
    return f"[{position(estimate.low)}, {high}"


def difference(value: float, *, percent: bool = True) -> str:
    """Write a difference with its sign, in points of percent if it is of shares."""
    size = number(abs(value), percent=percent)
    return ("−" if value < 0 else "+") + size


def difference_interval(estimate: Estimate, *, percent: bool = True) -> str:
    """Write the ends of a difference, or that there are none."""
    if math.isnan(estimate.low):
        return "one seed"
    ends = (estimate.low, estimate.high)
    return ", ".join(difference(end, percent=percent) for end in ends).join("[]")


def p_value(value: float | None) -> str:
    """Write a p-value: three digits after the point are enough."""
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
