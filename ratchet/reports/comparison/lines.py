"""Known values that accuracies are shown beside: what is exact, or what others have reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ratchet.errors import ParameterError


@dataclass(frozen=True)
class KnownValue:
    """An accuracy, from 0 to 1, that is drawn as a line."""

    label: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``LABEL=VALUE``.

        Raises
        ------
        ParameterError
            If it has no label, or the value is none between 0 and 1.
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


def known_values(lines: Sequence[str]) -> list[KnownValue]:
    """Read several, as they are given on a command line; the lowest first."""
    return sorted(map(KnownValue.parse, lines), key=lambda line: line.value)
