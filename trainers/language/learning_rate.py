"""Learning rate of language trainers, for local and remote optimizers. Imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.parameters.language import LanguageOptimizerParameters


class LearningRate:
    """Linear warm-up over steps, multiplied by a schedule over iterations."""

    def __init__(self, settings: LanguageOptimizerParameters) -> None:
        self._settings = settings
        self._share = 1.0

    def set_progress(self, iteration: int, num_iterations: int) -> None:
        """Set the current iteration, from 0, and the number of iterations."""
        left = 1 - iteration / max(num_iterations, 1)
        match self._settings.schedule:
            case "linear":
                self._share = left
            case "cosine":
                self._share = (1 - math.cos(math.pi * left)) / 2
            case _:
                self._share = 1.0

    def after(self, steps: int) -> float:
        """Return the learning rate of the step after the given number of steps."""
        warmup = self._settings.warmup_steps
        rise = min(1.0, (steps + 1) / (warmup + 1)) if warmup else 1.0
        return self._settings.lr * self._share * rise
