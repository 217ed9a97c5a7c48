"""``Estimate``: a number with its interval and how much it was measured on.

The value type that statistics return and that reports and tracking show.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A number of ``n`` independent units (datapoints), with an interval at ``level`` in (0, 1)."""

    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    method: str = ""

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"

    def percent(self, digits: int = 1) -> str:
        """Write the value and its interval in percent, e.g. ``87.3 % [86.1, 88.4]``."""
        low, high = (f"{100 * end:.{digits}f}" for end in (self.low, self.high))
        return f"{100 * self.value:.{digits}f} % [{low}, {high}]"

    def points(self, digits: int = 1) -> str:
        """Write a difference in percentage points, signed, e.g. ``+2.1 [−0.3, +4.5]``."""
        value, low, high = (
            f"{100 * number:+.{digits}f}".replace("-", "−")
            for number in (self.value, self.low, self.high)
        )
        return f"{value} [{low}, {high}]"

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval: a difference that chance does not explain."""
        return self.low > 0 or self.high < 0
