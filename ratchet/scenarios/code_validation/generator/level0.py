"""Level 0: straight-line arithmetic whose statement lists the steps, one to a line of the program.

Within reach of a tiny model: to judge a program is to compare each step with its line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests

STATEMENT = "Write a function solve(x) that does these steps in order and returns the result:"
ENTRY = "solve"
MIN_STEPS, MAX_STEPS = 2, 3
SMALLEST, LARGEST = 2, 9
OPERATIONS = (("add", "+"), ("subtract", "-"), ("multiply by", "*"))
"""How a statement and a program call each operation."""
BUG_KINDS = ("arithmetic", "constant")
"""The kinds of bugs (``mutation.RULES``) that leave each step beside its line."""

_INPUTS = (0, 1, 2, 5, 10, -3)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation with a whole number: ``operation`` is its place in ``OPERATIONS``."""

    operation: int
    number: int

    @property
    def words(self) -> str:
        """The step as a statement says it."""
        return f"{OPERATIONS[self.operation][0]} {self.number}"

    @property
    def line(self) -> str:
        """The step as a program does it."""
        return f"x = x {OPERATIONS[self.operation][1]} {self.number}"

    def __call__(self, x: int) -> int:
        """Do the step."""
        return (x + self.number, x - self.number, x * self.number)[self.operation]


def draw_steps(rng: np.random.Generator) -> tuple[Step, ...]:
    """Draw two or three steps."""
    count = int(rng.integers(MIN_STEPS, MAX_STEPS + 1))
    operations = rng.integers(len(OPERATIONS), size=count).tolist()
    numbers = rng.integers(SMALLEST, LARGEST + 1, size=count).tolist()
    return tuple(Step(o, n) for o, n in zip(operations, numbers, strict=True))


def question_of(steps: tuple[Step, ...]) -> str:
    """Write the statement."""
    return "\n".join((STATEMENT, *(step.words for step in steps)))


def solution_of(steps: tuple[Step, ...]) -> str:
    """Write the program."""
    lines = "".join(f"    {step.line}\n" for step in steps)
    return f"def {ENTRY}(x):\n{lines}    return x"


def level0_program(rng: np.random.Generator) -> Problem:
    """Make a problem of level 0; its tests call ``solve`` with a few numbers.

    Of the inputs used, any single changed operation or number is seen by at least one.
    """
    steps = draw_steps(rng)
    cases = [((x,), _run(steps, x)) for x in _INPUTS]
    return Problem(question_of(steps), solution_of(steps), call_tests(ENTRY, cases), level=0)


def _run(steps: tuple[Step, ...], x: int) -> int:
    for step in steps:
        x = step(x)
    return x
