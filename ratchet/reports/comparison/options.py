"""``Options``: how the intervals of a comparison are made, and how sure it should be."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.statistics.power import POWER
from ratchet.statistics.stratified import NUM_RESAMPLES, IntervalMethod


@dataclass(frozen=True)
class Options:
    """How intervals are made; see :mod:`ratchet.statistics.stratified`.

    ``power`` is how often a difference should be seen, where it is said how many seeds would do.
    """

    level: float = 0.95
    method: IntervalMethod = "expanded"
    num_resamples: int = NUM_RESAMPLES
    seed: int = 0
    power: float = POWER
