"""``Band``: a curve with an interval at each of its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.statistics.estimate import Estimate


@dataclass(frozen=True)
class Band:
    """A curve over ``positions``, with an interval at ``level`` at each of them by itself.

    ``n`` is the number of runs. Where runs cannot be drawn anew the ends are NaN.
    """

    positions: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    n: int
    level: float = 0.95
    method: str = ""

    def __len__(self) -> int:
        return len(self.positions)

    def estimate(self, place: int) -> Estimate:
        """Return the estimate at one place, e.g. the last: −1."""
        return Estimate(
            self.values[place],
            self.lows[place],
            self.highs[place],
            self.n,
            self.level,
            self.method,
        )
