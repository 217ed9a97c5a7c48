"""How long runs take to reach something, when some have ended before: Kaplan and Meier's median."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate

METHOD = "Kaplan–Meier (log-log)"


@dataclass(frozen=True)
class Reaching:
    """At which position each run has reached a threshold.

    Attributes
    ----------
    positions
        Of each run: where it reached the threshold, or where it ended without.
    reached
        Of each run: whether it did. One that did not is censored: it might have later on.
    median
        Where half of all runs have reached it, with its interval; an end, or the median itself, is
        infinite where the runs do not show one.
    """

    threshold: float
    positions: Sequence[float]
    reached: Sequence[bool]
    median: Estimate

    @property
    def num_reached(self) -> int:
        """How many runs have reached it."""
        return sum(self.reached)


def median_position(
    positions: Sequence[float], reached: Sequence[bool], level: float = 0.95
) -> Estimate:
    """Estimate by which position half of all runs have reached something.

    Parameters
    ----------
    positions
        Where each run reached it, or ended without; not negative.
    reached
        Whether it did. A run that ended counts as one that has not reached it until then, and as
        nothing afterwards.

    Returns
    -------
    Estimate
        Its value, or the upper end of its interval, is infinite where too few runs have reached it
        to say; the lower end is 0 where there are so few runs that all may well be later than half.

    Raises
    ------
    DataError
        If there is no run, a position is not finite, or the level is not in (0, 1).

    Notes
    -----
    Kaplan and Meier (1958). The interval has the positions at which the log-log interval of the
    share that is still to reach it holds one half: Brookmeyer and Crowley (1982). Runs that end do
    so for reasons of their own: the number of iterations was set beforehand.
    """
    times, events = np.asarray(positions, dtype=np.float64), np.asarray(reached, dtype=bool)
    if not len(times) or len(times) != len(events) or not np.isfinite(times).all():
        raise DataError(
            f"median_position: got {list(positions)} and {list(reached)}, expected a finite"
            " position for each run."
        )
    if not 0 < level < 1:
        raise DataError(f"level: got {level!r}, expected a number between 0 and 1, e.g. 0.95.")
    # of n runs all are later than half of all would be in 1 of 2^n cases
    proves_little = 0.5 ** len(times) > 1 - level
    if not events.any():
        low = 0.0 if proves_little else float(times.min())
        return Estimate(math.inf, low, math.inf, len(times), level, METHOD)
    from scipy.stats import CensoredData, ecdf

    left = ecdf(CensoredData(uncensored=times[events], right=times[~events])).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # undefined where all or none have reached it: NaN
        ends = left.confidence_interval(level, method="log-log")
    # the interval is undefined where all are there: take Clopper and Pearson's of all runs
    surest = ((1 - level) / 2) ** (1 / len(times))
    all_there = left.probabilities == 0
    lows = np.where(all_there, 0.0, ends.low.probabilities)
    highs = np.where(all_there, 1 - surest, ends.high.probabilities)
    return Estimate(
        _first_below(left.quantiles, left.probabilities),
        0.0 if proves_little else _first_below(left.quantiles, lows),
        _first_below(left.quantiles, highs),
        len(times),
        level,
        METHOD,
    )


def _first_below(times: np.ndarray, shares: np.ndarray) -> float:
    """Return the first time at which a share is at most one half; infinity if it never is."""
    places = np.flatnonzero(shares <= 0.5 + 1e-12)  # what is NaN is not
    return float(times[places[0]]) if len(places) else math.inf
