"""The values that a comparison is made of as plain data: estimates, curves and pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ratchet.reports.comparison.pairs import Pair
from ratchet.statistics.band import Band
from ratchet.statistics.estimate import Estimate


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
        "told_apart": pair.is_told_apart,
        "seeds_that_would_do": pair.needed,
        "power": None if pair.power is None else asdict(pair.power),
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
    """Return an estimate as data; what is no finite number is None."""
    return {
        "value": _plain(estimate.value),
        "low": _plain(estimate.low),
        "high": _plain(estimate.high),
        "n": estimate.n,
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
