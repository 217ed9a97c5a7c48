"""Players of the code-validation game at level 0, of mixed quality, written by hand.

What they say is all that the base model ever reads: experts quote each step beside its line and
mark whether they are the same; verifiers go by the marks, more or less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.scenarios.code_validation.generator.level0 import (
    OPERATIONS,
    Step,
    draw_steps,
    question_of,
    solution_of,
)

SAME, DIFFER = "same", "differ"
_LARGEST_WRONG_NUMBER = 12


@dataclass(frozen=True, slots=True)
class Skill:
    """How good players are.

    ``mark_errors``: an expert gets each mark wrong with one of these probabilities, drawn for
    each exercise. ``follows``: how often a verifier decides as the marks say.
    """

    mark_errors: tuple[float, ...]
    follows: float


@dataclass(frozen=True, slots=True)
class Exercise:
    """A problem and a program: ``steps`` as the statement has them, ``lines`` as it does them."""

    steps: tuple[Step, ...]
    lines: tuple[Step, ...]

    @property
    def question(self) -> str:
        """The statement."""
        return question_of(self.steps)

    @property
    def solution(self) -> str:
        """The program."""
        return solution_of(self.lines)


def draw_exercise(rng: np.random.Generator) -> Exercise:
    """Draw a problem, and a program for it that is right half of the time."""
    steps = draw_steps(rng)
    lines = list(steps)
    if rng.random() < 0.5:
        for line in rng.permutation(len(lines))[: 1 + int(rng.random() < 0.2)].tolist():
            lines[line] = _spoil(rng, lines[line])
    return Exercise(steps, tuple(lines))


def argue(rng: np.random.Generator, exercise: Exercise, skill: Skill) -> str:
    """Write an expert's argument: a line for each step, e.g. ``add + same 4 5 differ``."""
    error = skill.mark_errors[int(rng.integers(len(skill.mark_errors)))]
    wrong = (rng.random((len(exercise.steps), 2)) < error).tolist()
    return "\n".join(
        f"{OPERATIONS[step.operation][0]} {OPERATIONS[line.operation][1]}"
        f" {_mark((step.operation == line.operation) != wrong_sign)}"
        f" {step.number} {line.number} {_mark((step.number == line.number) != wrong_number)}"
        for step, line, (wrong_sign, wrong_number) in zip(
            exercise.steps, exercise.lines, wrong, strict=True
        )
    )


def decide(rng: np.random.Generator, arguments: list[str], skill: Skill) -> str:
    """Write a verifier's decision; with no argument to go by, either."""
    if not arguments:
        accepts = bool(rng.random() < 0.5)
    else:
        looks_right = DIFFER not in arguments[int(rng.integers(len(arguments)))]
        accepts = looks_right == bool(rng.random() < skill.follows)
    return f"Decision: {'accept' if accepts else 'reject'}"


def _spoil(rng: np.random.Generator, step: Step) -> Step:
    """Change a step's operation or its number."""
    if rng.random() < 0.5:
        return Step((step.operation + int(rng.integers(1, len(OPERATIONS)))) % 3, step.number)
    others = [n for n in range(_LARGEST_WRONG_NUMBER + 1) if n != step.number]
    near = [n for n in others if abs(n - step.number) == 1]
    choices = near if rng.random() < 0.5 else others
    return Step(step.operation, int(rng.choice(choices)))


def _mark(same: bool) -> str:
    return SAME if same else DIFFER
