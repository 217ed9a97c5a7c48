"""Whole numbers to be added, subtracted, multiplied or divided."""

from __future__ import annotations

from string import digits

import numpy as np

from ratchet.scenarios.language_task.sources.base import SOURCES, DrawnTasks
from ratchet.scenarios.language_task.task import Task


@SOURCES.register("arithmetic")
class Arithmetic(DrawnTasks):
    """Arithmetic: ``17+25=`` is answered by ``42``.

    A difference below 0 starts with ``-``.
    """

    instruction = "Calculate. Answer with the number and nothing else."

    def draw(self, rng: np.random.Generator) -> Task:
        """Sample an operation and its numbers."""
        section = self.section.arithmetic
        operation = section.operations[int(rng.integers(len(section.operations)))]
        bound = 10**section.num_digits
        left, right = (int(number) for number in rng.integers(bound, size=2))
        if operation == "/":
            right = 1 + right % (bound - 1)
            left = right * (left // right)
        question = f"{left}{operation}{right}"
        return Task(question, f"{question}=", str(_result(left, operation, right)))

    def characters(self) -> str:
        """Return digits, operations, the minus sign, and ``=``."""
        return "".join(dict.fromkeys((*digits, *self.section.arithmetic.operations, "-", "=")))


def _result(left: int, operation: str, right: int) -> int:
    match operation:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left // right
