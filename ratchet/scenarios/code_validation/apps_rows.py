"""The layout of APPS: solutions, and a problem's own tests, as JSON in texts.

A row has ``solutions`` (a JSON list of programs, empty where there are none) and ``input_output``:
``inputs``, ``outputs``, and ``fn_name`` where a function is called instead of text being read and
printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratchet.errors import DataError
from ratchet.scenarios.sandbox.suites import TestCase, TestMode, TestSuite, Value

_MAX_DIGITS = 4000
_PRELUDE = (
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string,"
    " sys\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\n"
    "from heapq import *\nfrom itertools import *\nfrom typing import *\n"
)
"""What the sites that functions were written for had imported; of math nothing hides ``pow``."""


def read_solutions(text: str, place: str) -> list[str]:
    """Read the programs of a row; none from an empty text.

    Raises
    ------
    DataError
        If they are no JSON list of texts.
    """
    found = _read(text, "solutions", place) if text.strip() else []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise DataError(f"{place}: solutions: got {text[:60]!r}, expected a JSON list of programs.")
    return found


def read_tests(value: object, place: str) -> TestSuite | None:
    """Read a problem's own tests, as JSON in a text or plain; None where there are none.

    Raises
    ------
    DataError
        If they are something else.
    """
    data = value
    if isinstance(value, str):
        data = _read(value, "input_output", place) if value.strip() else None
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise DataError(
            f"{place}: input_output: got {type(data).__name__}, expected an object with inputs and"
            " outputs."
        )
    given, expected = (data.get(name) for name in ("inputs", "outputs"))
    if not isinstance(given, list) or not isinstance(expected, list) or len(given) != len(expected):
        raise DataError(
            f"{place}: input_output: got {list(data)}, expected inputs and outputs, two lists of"
            " the same length."
        )
    if not given:
        return None
    entry = data.get("fn_name")
    mode: TestMode = "stdio" if entry is None else "call"
    write = _text if entry is None else _plain
    cases = tuple(TestCase(write(g), write(e)) for g, e in zip(given, expected, strict=True))
    return TestSuite(mode, cases, entry)


def tested_source(source: str, tests: TestSuite) -> str:
    """Return a program as its tests take it: with the site's imports, a method as a function."""
    if tests.mode != "call":
        return source
    found = f"{_PRELUDE}\n{source}\n"
    if "class Solution" in source:
        found += f"\n{tests.entry} = Solution().{tests.entry}\n"
    return found


def _text(value: Value) -> str:
    """Join lines that stand in a list."""
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return value if isinstance(value, str) else str(value)


def _plain(value: Value) -> Value:
    return value


def _read(text: str, field: str, place: str) -> Any:  # noqa: ANN401 -- JSON holds anything
    try:
        return json.loads(text, parse_int=_whole)
    except ValueError as error:
        raise DataError(f"{place}: {field}: got {text[:60]!r}, no JSON: {error}.") from error


def _whole(digits: str) -> int | float:
    """Read a number of any length; Python refuses to make thousands of digits an integer."""
    return int(digits) if len(digits) < _MAX_DIGITS else float("inf")
