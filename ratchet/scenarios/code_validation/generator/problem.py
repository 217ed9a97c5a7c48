"""``Problem``: the output of every level of the generator, and its tests.

The expected values of tests come from the generator's own arithmetic, never from running the
solution, so that running the solution against them is a check of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.scenarios.sandbox.suites import TestCase, TestSuite, Value


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
    test_cases = tuple(TestCase(list(arguments), expected) for arguments, expected in cases)
    return TestSuite("call", test_cases, entry)
