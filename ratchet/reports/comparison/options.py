"""Options of a comparison: intervals, power and reference accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ratchet.errors import ParameterError
from ratchet.statistics.estimate import Band, Estimate
from ratchet.statistics.power import POWER
from ratchet.statistics.stratified import NUM_RESAMPLES, IntervalMethod
from ratchet.tracking.preregistration import parse_pair


@dataclass(frozen=True)
class Options:
    """Options of intervals and tests; see :mod:`ratchet.statistics`.

    Attributes
    ----------
    power
        Probability with which the detectable difference is detected.
    baselines
        Labels of the groups with which all others are compared; default: all pairs.
    pairs
        Labels of the only pairs of groups to compare.
    effect
        Difference in the first metric for which to state the required seeds.
    """

    level: float = 0.95
    method: IntervalMethod = "expanded"
    num_resamples: int = NUM_RESAMPLES
    seed: int = 0
    power: float = POWER
    baselines: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    effect: float | None = None


MIN_SEEDS = 5
"""Below it no interval is shown: with three seeds, 95 % intervals contain the truth in 74 %."""


def with_enough_seeds(estimate: Estimate, sizes: Sequence[int]) -> Estimate:
    """Return an estimate without its interval if a task has fewer than ``MIN_SEEDS`` runs."""
    if min(sizes) >= MIN_SEEDS:
        return estimate
    return replace(estimate, low=math.nan, high=math.nan, method=f"none: n < {MIN_SEEDS}")


def band_with_enough_seeds(band: Band, sizes: Sequence[int]) -> Band:
    """Return a curve without its band if a task has fewer than ``MIN_SEEDS`` runs."""
    if min(sizes) >= MIN_SEEDS:
        return band
    nothing = [math.nan] * len(band)
    return replace(band, lows=nothing, highs=nothing, method=f"none: n < {MIN_SEEDS}")


@dataclass(frozen=True)
class ReferenceValue:
    """A reference accuracy in [0, 1], drawn as a line."""

    label: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``LABEL=VALUE``."""
        label, equals, number = (part.strip() for part in text.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not equals or not label or not 0 <= value <= 1:
            raise ParameterError(
                f"--reference: got {text!r}, expected LABEL=VALUE with a value from 0 to 1, such as"
                " 'random question, exact=0.932'."
            )
        return cls(label, value)


def planned_pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Parse several ``FIRST vs SECOND``, each kept once."""
    pairs = []
    for line in lines:
        pair = parse_pair(line)
        if pair is None:
            raise ParameterError(
                f"--pair: got {line!r}, expected two groups as FIRST vs SECOND, such as"
                " 'debate vs untrained'."
            )
        pairs.append(pair)
    return list(dict.fromkeys(pairs))


def reference_values(lines: Sequence[str]) -> list[ReferenceValue]:
    """Parse several ``LABEL=VALUE``, in ascending order of value."""
    return sorted(map(ReferenceValue.parse, lines), key=lambda line: line.value)
