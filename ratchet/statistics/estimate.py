"""``Estimate`` and ``Band``: a value or a curve with intervals and the sample size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value from ``n`` independent units (datapoints) with an interval at ``level`` in (0, 1)."""

    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    method: str = ""

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"

    def percent(self, digits: int = 1) -> str:
        """Format the value and its interval in percent, e.g. ``87.3 % [86.1, 88.4]``."""
        low, high = (f"{100 * end:.{digits}f}" for end in (self.low, self.high))
        return f"{100 * self.value:.{digits}f} % [{low}, {high}]"

    def points(self, digits: int = 1) -> str:
        """Format a difference in percentage points, signed, e.g. ``+2.1 [−0.3, +4.5]``."""
        value, low, high = (
            f"{100 * number:+.{digits}f}".replace("-", "−")
            for number in (self.value, self.low, self.high)
        )
        return f"{value} [{low}, {high}]"

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Band:
    """A curve over ``positions`` with a pointwise interval at ``level``.

    ``n`` is the number of runs. The bounds are NaN where runs cannot be resampled.
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

    def estimate(self, index: int) -> Estimate:
        """Return the estimate at an index; −1 is the last."""
        return Estimate(
            self.values[index],
            self.lows[index],
            self.highs[index],
            self.n,
            self.level,
            self.method,
        )
