"""``Problem``: what every level of the generator makes, and what its tests look like.

The expected values of tests come from the generator's own arithmetic, never from running the
solution, so that running the solution against them is a check of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
"""Plain JSON data: all that goes into a tested program and comes out of it."""

TestMode = Literal["call", "variables", "stdio"]


@dataclass(frozen=True)
class TestCase:
    """What a program is given, and what it should return.

    ``call``: a list of arguments and the returned value (a tuple counts as a list).
    ``variables``: variables that are set before, and those that are looked at after.
    ``stdio``: the text of the standard input, and of the standard output.
    """

    __test__ = False

    given: Value
    expected: Value


@dataclass(frozen=True)
class TestSuite:
    """The tests of one problem; made by the functions below."""

    __test__ = False

    mode: TestMode
    cases: tuple[TestCase, ...]
    entry: str | None = None


@dataclass(frozen=True)
class Problem:
    """A programming problem with the source of a true solution.

    ``level`` is its difficulty: 0 straight-line arithmetic, higher ones harder; -1 unknown.
    """

    question: str
    solution: str
    tests: TestSuite
    level: int = -1


def call_tests(entry: str, cases: Sequence[tuple[Sequence[Value], Value]]) -> TestSuite:
    """Test a function by arguments and the values that should be returned."""
    made = tuple(TestCase(list(arguments), expected) for arguments, expected in cases)
    return TestSuite("call", made, entry)
