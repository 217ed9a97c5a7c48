"""Pieces of problems: each has the same meaning in English, in Python and as a function.

A phrase's ``apply`` is the generator's own arithmetic; its ``code`` is a solution's.
Expected values come from the former, so a solution that passes agrees with the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Phrase(Generic[_Result]):
    """A phrase about one value; ``{}`` in the texts is replaced by its name."""

    english: str
    code: str
    apply: Callable[[int], _Result]

    def say(self, name: str) -> str:
        """Return it in English, of the value of that name."""
        return self.english.replace("{}", name)

    def write(self, name: str) -> str:
        """Write it in Python of the variable of that name."""
        return self.code.replace("{}", name)


Number = Phrase[int]
Condition = Phrase[bool]


def pick(rng: np.random.Generator, items: Sequence[_Item]) -> _Item:
    """Draw one of several."""
    return items[int(rng.integers(len(items)))]


def pick_distinct(rng: np.random.Generator, items: Sequence[_Item], count: int) -> list[_Item]:
    """Draw several different ones, in random order."""
    return [items[int(i)] for i in rng.choice(len(items), size=count, replace=False)]


def small(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a number from ``low`` to ``high``, both included."""
    return int(rng.integers(low, high + 1))


def draw_number(rng: np.random.Generator) -> Number:
    """Draw a number computed from one integer."""
    a, b = small(rng, 2, 9), small(rng, 2, 6)
    return pick(
        rng,
        (
            Phrase(f"{{}} plus {a}", f"{{}} + {a}", lambda x: x + a),
            Phrase(f"{{}} minus {a}", f"{{}} - {a}", lambda x: x - a),
            Phrase(f"{a} minus {{}}", f"{a} - {{}}", lambda x: a - x),
            Phrase(f"{b} times {{}}", f"{b} * {{}}", lambda x: b * x),
            Phrase(f"{b} times {{}}, plus {a}", f"{b} * {{}} + {a}", lambda x: b * x + a),
            Phrase(f"{b} times {{}}, minus {a}", f"{b} * {{}} - {a}", lambda x: b * x - a),
            Phrase("the square of {}", "{} * {}", lambda x: x * x),
            Phrase(f"the square of {{}}, minus {a}", f"{{}} * {{}} - {a}", lambda x: x * x - a),
            Phrase(f"the remainder of {{}} modulo {a}", f"{{}} % {a}", lambda x: x % a),
            Phrase(f"{{}} divided by {b}, rounded down", f"{{}} // {b}", lambda x: x // b),
            Phrase("the absolute value of {}", "abs({})", abs),
            Phrase(
                f"the absolute difference between {{}} and {a}",
                f"abs({{}} - {a})",
                lambda x: abs(x - a),
            ),
            Phrase(f"the smaller of {{}} and {a}", f"min({{}}, {a})", lambda x: min(x, a)),
            Phrase(f"the larger of {{}} and {a}", f"max({{}}, {a})", lambda x: max(x, a)),
        ),
    )


def draw_condition(rng: np.random.Generator) -> Condition:
    """Draw a condition on one integer that holds for some and not for others."""
    simple = (_draw_simple(rng), _draw_simple(rng))
    first, second = simple
    kind = small(rng, 0, 5)
    if first.english == second.english or kind > 1:
        return first
    if kind == 0:
        return Phrase(
            f"{first.english} and {second.english}",
            f"{first.code} and {second.code}",
            lambda x: first.apply(x) and second.apply(x),
        )
    return Phrase(
        f"{first.english} or {second.english}",
        f"{first.code} or {second.code}",
        lambda x: first.apply(x) or second.apply(x),
    )


def _draw_simple(rng: np.random.Generator) -> Condition:
    a, m = small(rng, -3, 9), small(rng, 2, 5)
    r = small(rng, 1, m - 1)
    return pick(
        rng,
        (
            Phrase(f"{{}} is greater than {a}", f"{{}} > {a}", lambda x: x > a),
            Phrase(f"{{}} is less than {a}", f"{{}} < {a}", lambda x: x < a),
            Phrase(f"{{}} is at least {a}", f"{{}} >= {a}", lambda x: x >= a),
            Phrase(f"{{}} is at most {a}", f"{{}} <= {a}", lambda x: x <= a),
            Phrase(f"{{}} is divisible by {m}", f"{{}} % {m} == 0", lambda x: x % m == 0),
            Phrase(f"{{}} is not divisible by {m}", f"{{}} % {m} != 0", lambda x: x % m != 0),
            Phrase(
                f"{{}} leaves the remainder {r} when divided by {m}",
                f"{{}} % {m} == {r}",
                lambda x: x % m == r,
            ),
            Phrase("{} is even", "{} % 2 == 0", lambda x: x % 2 == 0),
            Phrase("{} is odd", "{} % 2 == 1", lambda x: x % 2 == 1),
            Phrase("{} is negative", "{} < 0", lambda x: x < 0),
            Phrase(
                f"{{}} lies between {a} and {a + m} inclusive",
                f"{a} <= {{}} <= {a + m}",
                lambda x: a <= x <= a + m,
            ),
        ),
    )


def draw_integers(rng: np.random.Generator, count: int) -> list[int]:
    """Draw different integers near zero, where conditions change."""
    return [int(x) - 12 for x in rng.choice(28, size=count, replace=False)]


def draw_lists(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Draw lists of integers: the empty one, a single one, longer ones with repetitions."""
    lists: list[list[int]] = [[], [small(rng, -9, 12)]]
    while len(lists) < count:
        lists.append([small(rng, -9, 12) for _ in range(small(rng, 2, 9))])
    return lists


FUNCTION_NAMES = ("solve", "compute", "evaluate", "process", "answer", "transform", "combine")
