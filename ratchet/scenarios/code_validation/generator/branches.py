"""Level 1: functions of one or two integers that distinguish cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ratchet.scenarios.code_validation.generator.phrases import (
    FUNCTION_NAMES,
    Condition,
    Number,
    draw_condition,
    draw_integers,
    draw_number,
    pick,
    small,
)
from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests

NUM_CASES = 28


@dataclass(frozen=True)
class _Start:
    """The number that the cases distinguish, computed from the arguments."""

    parameters: tuple[str, ...]
    name: str
    english: str
    line: str
    apply: Callable[[list[int]], int]


def branching_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem of level 1."""
    start = _draw_start(rng)
    branches = [(draw_condition(rng), draw_number(rng)) for _ in range(small(rng, 1, 3))]
    last = draw_number(rng)
    name = pick(rng, FUNCTION_NAMES)
    cases = []
    for arguments in _draw_arguments(rng, len(start.parameters)):
        value = start.apply(arguments)
        chosen = next((n for condition, n in branches if condition.apply(value)), last)
        cases.append((arguments, chosen.apply(value)))
    return Problem(
        question=_question(name, start, branches, last),
        solution=_solution(name, start, branches, last, nested=bool(rng.integers(2))),
        tests=call_tests(name, cases),
        level=1,
    )


def _draw_start(rng: np.random.Generator) -> _Start:
    a, b = small(rng, 2, 4), small(rng, 2, 4)
    return pick(
        rng,
        (
            _Start(("x",), "x", "", "", lambda v: v[0]),
            _Start(("n",), "n", "", "", lambda v: v[0]),
            _Start(
                ("x", "y"),
                "s",
                "Let s be the sum of x and y. ",
                "s = x + y",
                lambda v: v[0] + v[1],
            ),
            _Start(("x", "y"), "d", "Let d be x minus y. ", "d = x - y", lambda v: v[0] - v[1]),
            _Start(
                ("a", "b"),
                "t",
                f"Let t be {a} times a plus {b} times b. ",
                f"t = {a} * a + {b} * b",
                lambda v: a * v[0] + b * v[1],
            ),
            _Start(("a", "b"), "m", "Let m be the larger of a and b. ", "m = max(a, b)", max),
        ),
    )


def _draw_arguments(rng: np.random.Generator, count: int) -> list[list[int]]:
    columns = [draw_integers(rng, NUM_CASES) for _ in range(count)]
    return [list(row) for row in zip(*columns, strict=True)]


def _question(
    name: str, start: _Start, branches: list[tuple[Condition, Number]], last: Number
) -> str:
    kind = "an integer" if len(start.parameters) == 1 else "two integers"
    texts = [
        f"{'If' if i == 0 else 'Otherwise, if'} {condition.say(start.name)},"
        f" return {number.say(start.name)}."
        for i, (condition, number) in enumerate(branches)
    ]
    head = f"Write a function {name}({', '.join(start.parameters)}) of {kind}. {start.english}"
    return " ".join([head.rstrip(), *texts, f"Otherwise return {last.say(start.name)}."])


def _solution(
    name: str,
    start: _Start,
    branches: list[tuple[Condition, Number]],
    last: Number,
    *,
    nested: bool,
) -> str:
    """Write returns in an if chain, or one variable that is returned at the end."""
    lines = [f"def {name}({', '.join(start.parameters)}):"]
    if start.line:
        lines.append(f"    {start.line}")
    leave = "return" if nested else "result ="
    for i, (condition, number) in enumerate(branches):
        word = "if" if i == 0 else "elif"
        lines.append(f"    {word} {condition.write(start.name)}:")
        lines.append(f"        {leave} {number.write(start.name)}")
    lines += ["    else:", f"        {leave} {last.write(start.name)}"]
    if not nested:
        lines.append("    return result")
    return "\n".join(lines)
