"""``TestSuite``: what a program is run on, and what should come out."""

from __future__ import annotations

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
