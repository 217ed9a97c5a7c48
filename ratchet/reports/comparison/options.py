"""Options of a comparison: intervals, power and reference accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ratchet.errors import ParameterError
from ratchet.statistics.differences import POWER
from ratchet.statistics.stratified import NUM_RESAMPLES, IntervalMethod


@dataclass(frozen=True)
class Options:
    """Interval options; see :mod:`ratchet.statistics.stratified`.

    ``power`` is the target power for the required number of seeds.
    """

    level: float = 0.95
    method: IntervalMethod = "expanded"
    num_resamples: int = NUM_RESAMPLES
    seed: int = 0
    power: float = POWER


@dataclass(frozen=True)
class ReferenceValue:
    """A reference accuracy in [0, 1], drawn as a line."""

    label: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``LABEL=VALUE``.

        Raises
        ------
        ParameterError
            If the label is missing or the value is not in [0, 1].
        """
        label, equals, number = (part.strip() for part in text.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not equals or not label or not 0 <= value <= 1:
            raise ParameterError(
                f"--line: got {text!r}, expected LABEL=VALUE with a value from 0 to 1, such as"
                " 'random question, exact=0.932'."
            )
        return cls(label, value)


def reference_values(lines: Sequence[str]) -> list[ReferenceValue]:
    """Parse several ``LABEL=VALUE``, in ascending order of value."""
    return sorted(map(ReferenceValue.parse, lines), key=lambda line: line.value)
