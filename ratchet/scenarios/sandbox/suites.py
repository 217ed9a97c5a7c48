"""``TestSuite``: inputs of a program, and its expected outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
"""Plain JSON data: inputs and outputs of tested programs."""

TestMode = Literal["call", "variables", "stdio"]


@dataclass(frozen=True)
class TestCase:
    """An input of a program, and its expected output.

    ``call``: a list of arguments and the returned value (a tuple counts as a list). ``variables``:
    variables that are set before, and those that are compared after. ``stdio``: the text of the
    standard input, and of the standard output.
    """

    __test__ = False

    given: Value
    expected: Value


@dataclass(frozen=True)
class TestSuite:
    """The tests of one problem; created by the functions below."""

    __test__ = False

    mode: TestMode
    cases: tuple[TestCase, ...]
    entry: str | None = None
