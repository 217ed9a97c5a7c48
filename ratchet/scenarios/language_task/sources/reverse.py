"""Strings to be written backwards."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

from ratchet.scenarios.language_task.sources.base import SOURCES, DrawnTasks
from ratchet.scenarios.language_task.task import Task

SYMBOLS = ascii_lowercase + ascii_uppercase + digits


@SOURCES.register("reverse")
class Reverse(DrawnTasks):
    """Strings written backwards: ``bcade=`` is answered by ``edacb``.

    Each symbol is sampled uniformly and independently.
    """

    instruction = "Write the letters before the sign = backwards. Answer with nothing else."

    def draw(self, rng: np.random.Generator) -> Task:
        """Sample a string."""
        section = self.section.reverse
        symbol_ids = rng.integers(section.num_symbols, size=section.length)
        word = "".join(SYMBOLS[symbol_id] for symbol_id in symbol_ids)
        return Task(word, f"{word}=", word[::-1])

    def characters(self) -> str:
        """Return the symbols and the sign behind them."""
        return SYMBOLS[: self.section.reverse.num_symbols] + "="
