"""Level 2: functions that go through numbers with a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import add, sub

import numpy as np

from ratchet.scenarios.code_validation.generator.phrases import (
    FUNCTION_NAMES,
    Condition,
    Number,
    draw_condition,
    draw_lists,
    draw_number,
    pick,
    small,
)
from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests
from ratchet.scenarios.sandbox.suites import Value

NUM_CASES = 24


@dataclass(frozen=True)
class _Source:
    """Source of the numbers."""

    parameter: str
    english: str
    item: str
    loop: str
    numbers: Callable[[Value], Iterable[int]]
    before: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Total:
    """Aggregate of the numbers that count; ``{}`` stands for one of them."""

    english: str
    start: int
    update: str
    apply: Callable[[int, int], int]


@dataclass(frozen=True)
class _Loop:
    """One sampled loop: the numbers that count, its end, and their aggregate."""

    source: _Source
    skip: Condition | None
    stop: Condition | None
    number: Number
    total: _Total

    def run(self, argument: Value) -> int:
        """Return the function's expected value."""
        result = self.total.start
        for item in self.source.numbers(argument):
            if self.stop is not None and self.stop.apply(item):
                break
            if self.skip is not None and self.skip.apply(item):
                continue
            result = self.total.apply(result, self.number.apply(item))
        return result


def looping_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem of level 2."""
    source, total = _draw_source(rng), _draw_total(rng)
    kind = small(rng, 0, 3)
    loop = _Loop(
        source=source,
        skip=draw_condition(rng) if kind in (0, 2) else None,
        stop=draw_condition(rng) if kind in (1, 2) else None,
        number=draw_number(rng),
        total=total,
    )
    name = pick(rng, FUNCTION_NAMES)
    arguments = _draw_arguments(rng, source)
    return Problem(
        question=_question(name, loop),
        solution=_solution(name, loop),
        tests=call_tests(name, [([argument], loop.run(argument)) for argument in arguments]),
        level=2,
    )


def _as_list(value: Value) -> Sequence[int]:
    assert isinstance(value, list)  # as drawn
    return [x for x in value if isinstance(x, int)]


def _as_int(value: Value) -> int:
    assert isinstance(value, int)  # as drawn
    return value


_IN_ORDER = _Source(
    "numbers",
    "Go through the list of integers numbers in order",
    "x",
    "for x in numbers:",
    _as_list,
)
_BACKWARDS = _Source(
    "numbers",
    "Go through the list of integers numbers from its end to its beginning",
    "x",
    "for x in reversed(numbers):",
    lambda v: reversed(_as_list(v)),
)
_UP_TO_N = _Source(
    "n",
    "Go through the integers i from 1 to n, n included",
    "i",
    "for i in range(1, n + 1):",
    lambda v: range(1, _as_int(v) + 1),
)
_DIGITS = _Source(
    "n",
    "Go through the decimal digits d of the integer n (which is not negative) from"
    " the last to the first; 0 has no digits",
    "d",
    "while n > 0:",
    lambda v: [int(c) for c in reversed(str(v)) if v],
    first=("d = n % 10", "n = n // 10"),
)
_WITH_POSITIONS = _Source(
    "numbers",
    "Go through the positions k of the list of integers numbers, and let x be the"
    " number at position k plus k (positions start from 0)",
    "x",
    "for k in range(len(numbers)):",
    lambda v: [x + k for k, x in enumerate(_as_list(v))],
    first=("x = numbers[k] + k",),
)


def _in_steps(step: int) -> _Source:
    return _Source(
        "n",
        f"Go through the integers i = 0, {step}, {2 * step}, ... that are less than n",
        "i",
        f"for i in range(0, n, {step}):",
        lambda v: range(0, _as_int(v), step),
    )


def _draw_source(rng: np.random.Generator) -> _Source:
    steps = _in_steps(small(rng, 2, 3))
    return pick(rng, (_IN_ORDER, _BACKWARDS, _UP_TO_N, steps, _DIGITS, _WITH_POSITIONS))


def _draw_total(rng: np.random.Generator) -> _Total:
    start, modulus = small(rng, 0, 5), pick(rng, (97, 101, 1000))
    factor = small(rng, 2, 3)
    return pick(
        rng,
        (
            _Total(f"add it to a total that starts at {start}", start, "total += {}", add),
            _Total(f"subtract it from a total that starts at {start}", start, "total -= {}", sub),
            _Total(
                f"replace the total, which starts at {start}, by {factor} times the total plus it,"
                f" modulo {modulus}",
                start,
                f"total = ({factor} * total + {{}}) % {modulus}",
                lambda t, x: (factor * t + x) % modulus,
            ),
            _Total(
                f"replace the total, which starts at {start}, by the larger of the total and it",
                start,
                "total = max(total, {})",
                max,
            ),
            _Total(
                f"replace the total, which starts at {start}, by it minus the total",
                start,
                "total = {} - total",
                lambda t, x: x - t,
            ),
        ),
    )


def _draw_arguments(rng: np.random.Generator, source: _Source) -> list[Value]:
    if source.parameter == "numbers":
        return [list(numbers) for numbers in draw_lists(rng, NUM_CASES)]
    if source.item == "d":
        return [0, *(small(rng, 1, 10**d) for d in range(1, 7)), 1203, 98765]
    return [0, 1, 2, *(small(rng, 3, 30) for _ in range(NUM_CASES - 3))]


def _question(name: str, loop: _Loop) -> str:
    item = loop.source.item
    texts = [f"Write a function {name}({loop.source.parameter}). {loop.source.english}."]
    if loop.stop is not None:
        texts.append(f"Stop as soon as {loop.stop.say(item)}.")
    if loop.skip is not None:
        texts.append(f"Skip {item} if {loop.skip.say(item)}.")
    texts.append(f"For each {item} take {loop.number.say(item)} and {loop.total.english}.")
    return " ".join([*texts, "Return the total."])


def _solution(name: str, loop: _Loop) -> str:
    source, item = loop.source, loop.source.item
    lines = [f"def {name}({source.parameter}):", f"    total = {loop.total.start}"]
    lines += [f"    {source.loop}", *(f"        {line}" for line in source.first)]
    if loop.stop is not None:
        lines += [f"        if {loop.stop.write(item)}:", "            break"]
    if loop.skip is not None:
        lines += [f"        if {loop.skip.write(item)}:", "            continue"]
    update = loop.total.update.replace("{}", f"({loop.number.write(item)})")
    return "\n".join([*lines, f"        {update}", "    return total"])
