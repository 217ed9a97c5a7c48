"""Loaders of examples: local JSONL files, and rows of datasets from the Hugging Face Hub.

Plain rows have ``question``, ``solution`` and ``y`` (1 correct, 0 buggy), or ``tests`` instead of
``y``, which are then run. Buggy-APPS has ``question``, ``difficulty``, ``flags``, and the lists
``solutions`` and ``buggy_solutions`` of objects with ``solution``. APPS has ``solutions`` (a JSON
list of programs, empty if there are no solutions) and ``input_output``: ``inputs``, ``outputs``,
and ``fn_name`` if a function is called instead of reading and printing text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

from ratchet.errors import DataError
from ratchet.scenarios.code_validation.generator.examples import Example
from ratchet.scenarios.hub import load_hub_splits
from ratchet.scenarios.sandbox.programs import BUGGY, Program, ProgramResult, run_programs
from ratchet.scenarios.sandbox.suites import TestCase, TestMode, TestSuite, Value

_MAX_DIGITS = 4000
_PRELUDE = (
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string,"
    " sys\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\n"
    "from heapq import *\nfrom itertools import *\nfrom typing import *\n"
)
"""Imports of the sites for which functions were written; math must not hide ``pow``."""

_LOGGER = logging.getLogger(__name__)
DIFFICULTIES = ("introductory", "interview", "competition")
"""The difficulties of APPS: levels 1 to 3 here."""
Row: TypeAlias = "Mapping[str, Any]"


def read_solutions(text: str, location: str) -> list[str]:
    """Read the programs of a row; none from an empty text."""
    solutions = _read(text, "solutions", location) if text.strip() else []
    if not isinstance(solutions, list) or not all(isinstance(one, str) for one in solutions):
        raise DataError(
            f"{location}: solutions: got {text[:60]!r}, expected a JSON list of programs."
        )
    return solutions


def read_tests(value: object, location: str) -> TestSuite | None:
    """Read a problem's own tests, as JSON text or plain data; None if it has none."""
    data = value
    if isinstance(value, str):
        data = _read(value, "input_output", location) if value.strip() else None
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise DataError(
            f"{location}: input_output: got {type(data).__name__}, expected an object with inputs"
            " and outputs."
        )
    inputs, expected = (data.get(name) for name in ("inputs", "outputs"))
    if (
        not isinstance(inputs, list)
        or not isinstance(expected, list)
        or len(inputs) != len(expected)
    ):
        raise DataError(
            f"{location}: input_output: got {list(data)}, expected inputs and outputs, two lists of"
            " the same length."
        )
    if not inputs:
        return None
    entry = data.get("fn_name")
    mode: TestMode = "stdio" if entry is None else "call"
    write = _joined_text if entry is None else _plain
    cases = tuple(TestCase(write(g), write(e)) for g, e in zip(inputs, expected, strict=True))
    return TestSuite(mode, cases, entry)


def tested_source(source: str, tests: TestSuite) -> str:
    """Return a program as its tests take it: with the site's imports, a method as a function."""
    if tests.mode != "call":
        return source
    program = f"{_PRELUDE}\n{source}\n"
    if "class Solution" in source:
        program += f"\n{tests.entry} = Solution().{tests.entry}\n"
    return program


def _joined_text(value: Value) -> str:
    """Join a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(_joined_text, value))
    return value if isinstance(value, str) else str(value)


def _plain(value: Value) -> Value:
    return value


def _read(text: str, field: str, location: str) -> Any:  # noqa: ANN401 -- JSON holds anything
    try:
        return json.loads(text, parse_int=_whole)
    except ValueError as error:
        raise DataError(f"{location}: {field}: got {text[:60]!r}, no JSON: {error}.") from error


def _whole(digits: str) -> int | float:
    """Read a number of any length; Python refuses to make thousands of digits an integer."""
    return int(digits) if len(digits) < _MAX_DIGITS else float("inf")


@dataclass(frozen=True)
class LoadingOptions:
    """Selection of rows, and limits of programs whose tests are run.

    ``solution_number`` is the index of the only solution of a row of APPS that is used, all if
    None; ``run_own_tests``: whether programs are run on their problem's own tests, and dropped if
    these contradict the label.
    """

    difficulties: tuple[str, ...] = ()
    exclude_flagged: bool = True
    solution_number: int | None = None
    run_own_tests: bool = True
    time_limit: float = 4.0
    memory_mb: int = 256


@dataclass(frozen=True)
class _Untested:
    """An example whose label its tests will give; ``y`` is what the row says, if anything.

    If they contradict each other, raises, or drops the example if ``may_be_left_out``.
    """

    example: Example
    y: int | None
    tests: TestSuite
    location: str
    may_be_left_out: bool = False


def load_jsonl_examples(path: Path, options: LoadingOptions) -> dict[str, list[Example]]:
    """Read a JSONL file (the split ``all``), or ``train.jsonl`` and ``test.jsonl`` in a folder."""
    if path.is_dir():
        files = {split: path / f"{split}.jsonl" for split in ("train", "test")}
    else:
        files = {"all": path}
    return {split: rows_to_examples(_read_lines(file), options) for split, file in files.items()}


def rows_to_examples(rows: Iterator[tuple[str, Row]], options: LoadingOptions) -> list[Example]:
    """Convert rows, each with its location for messages, to examples."""
    loaded_examples: list[Example | _Untested] = []
    for location, row in rows:
        difficulties = options.difficulties
        if difficulties and _text(row, "difficulty", location) not in difficulties:
            continue
        if options.exclude_flagged and row.get("flags"):
            continue
        loaded_examples += _read_row(row, location, options)
    untested = [item for item in loaded_examples if isinstance(item, _Untested)]
    programs = [_program(item, item.example.solution) for item in untested]
    results = run_programs(programs, time_limit=options.time_limit, memory_mb=options.memory_mb)
    labels = [_label(item, result) for item, result in zip(untested, results, strict=True)]
    left_out = labels.count(None)
    if left_out:
        _LOGGER.warning(
            "%d of %d programs were left out, since their problem's own tests contradict the label",
            *(left_out, len(labels)),
        )
    tested = iter(labels)
    examples = []
    for item in loaded_examples:
        if isinstance(item, Example):
            examples.append(item)
        elif (y := next(tested)) is not None:
            examples.append(replace(item.example, y=y, program=partial(_program, item)))
    return examples


def _program(item: _Untested, source: str) -> Program:
    if not item.may_be_left_out:
        return Program(source, item.tests)
    return Program(tested_source(source, item.tests), item.tests, tolerant=True)


def _label(item: _Untested, result: ProgramResult) -> int | None:
    """Return the label; None for dropped rows."""
    if item.may_be_left_out:
        says_y = result.passed if item.y else result.status in BUGGY
        return item.y if says_y else None
    if item.y is not None and item.y != result.passed:
        expected = "the tests to pass" if item.y else "a test to fail"
        raise DataError(
            f"{item.location}: y: got {item.y}, but the program's tests ended with"
            f" {result.status!r}, expected {expected}. Correct y or the tests, or leave one of"
            " them out."
        )
    return int(result.passed)


def _read_lines(file: Path) -> Iterator[tuple[str, Row]]:
    try:
        text = file.read_bytes().decode("utf-8-sig")  # a byte order mark is ignored
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"dataset: cannot read {file}: {error}. Expected a file in UTF-8 with one JSON object"
            " on each line, or a folder with train.jsonl and test.jsonl."
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        location = f"{file}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{location}: no JSON: {error}. Expected one object on a line."
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{location}: got {_kind(row)}, expected a JSON object.")
        yield location, row


def _read_row(row: Row, location: str, options: LoadingOptions) -> Sequence[Example | _Untested]:
    question = _text(row, "question", location)
    level = _level(row, location)
    if "buggy_solutions" in row or "solutions" in row:
        fields = [(1, "solutions")]
        if not isinstance(row.get("solutions"), str):  # else it is of APPS itself
            fields.append((0, "buggy_solutions"))
        examples = [
            Example(question, solution, y, level)
            for y, field in fields
            for solution in _solutions(row, field, location, options.solution_number)
        ]
        tests = read_tests(row.get("input_output"), location) if options.run_own_tests else None
        if tests is None:
            return examples
        return [_Untested(e, e.y, tests, location, may_be_left_out=True) for e in examples]
    solution = _text(row, "solution", location)
    label = _label_of(row, location)
    if row.get("tests") is None:
        if label is None:
            raise DataError(f"{location}: y: missing, expected 0 or 1, or tests that decide it.")
        return [Example(question, solution, label, level)]
    tests = _tests(row["tests"], location)
    return [_Untested(Example(question, solution, -1, level), label, tests, location)]


def _label_of(row: Row, location: str) -> int | None:
    label = row.get("y")
    if label is not None and (isinstance(label, bool) or label not in (0, 1)):
        raise DataError(f"{location}: y: got {label!r}, expected 0 (buggy) or 1 (right).")
    return None if label is None else int(label)


def _level(row: Row, location: str) -> int:
    level = row.get("level")
    if level is not None:
        if isinstance(level, bool) or not isinstance(level, int) or level < -1:
            raise DataError(f"{location}: level: got {level!r}, expected a whole number from -1.")
        return level
    difficulty = row.get("difficulty")
    return DIFFICULTIES.index(difficulty) + 1 if difficulty in DIFFICULTIES else -1


def _solutions(row: Row, field: str, location: str, number: int | None) -> list[str]:
    items = row.get(field)
    if isinstance(items, str):
        texts = read_solutions(items, location)
        return texts if number is None else texts[number : number + 1]
    if isinstance(items, Mapping):  # a list of objects, turned around by some readers
        items = [{"solution": solution} for solution in items.get("solution", ())]
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise DataError(f"{location}: {field}: got {_kind(items)}, expected a list of objects.")
    for i, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise DataError(f"{location}: {field}[{i}]: got {_kind(item)}, expected an object.")
    return [_text(item, "solution", f"{location}: {field}[{i}]") for i, item in enumerate(items)]


def _tests(value: Any, location: str) -> TestSuite:  # noqa: ANN401 -- JSON holds anything
    """Read ``{"mode": …, "entry": …, "cases": [{"given": …, "expected": …}]}``."""
    if not isinstance(value, Mapping):
        raise DataError(f"{location}: tests: got {_kind(value)}, expected an object.")
    mode = value.get("mode", "call")
    if mode not in get_args(TestMode):
        raise DataError(
            f"{location}: tests.mode: got {mode!r}, expected one of"
            f" {', '.join(get_args(TestMode))}."
        )
    entry = _text(value, "entry", f"{location}: tests") if mode == "call" else None
    cases: list[dict[str, Value]] | None = value.get("cases")
    if not isinstance(cases, list) or not cases:
        raise DataError(f"{location}: tests.cases: got {_kind(cases)}, expected a list of tests.")
    kinds: dict[str, type] = {"call": list, "variables": dict, "stdio": str}
    test_cases: list[TestCase] = []
    for i, case in enumerate(cases):
        if not isinstance(case, Mapping) or not {"given", "expected"} <= case.keys():
            raise DataError(f"{location}: tests.cases[{i}]: expected an object: given, expected.")
        if not isinstance(case["given"], kinds[mode]):
            raise DataError(
                f"{location}: tests.cases[{i}].given: got {_kind(case['given'])}, expected"
                f" {kinds[mode].__name__} in the mode {mode}."
            )
        test_cases.append(TestCase(case["given"], case["expected"]))
    return TestSuite(mode, tuple(test_cases), entry)


def _text(row: Row, field: str, location: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        got = "nothing" if field not in row else repr(value)[:60]
        raise DataError(f"{location}: {field}: got {got}, expected a text that is not empty.")
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def load_hub_examples(name: str, options: LoadingOptions) -> dict[str, list[Example]]:
    """Read a dataset with ``datasets``: examples by split."""
    splits = load_hub_splits(name, "dataset=hub:FOLDER")
    examples = {}
    for split, rows in splits.items():
        located = ((f"{name}[{split}] row {index}", row) for index, row in enumerate(rows))
        examples[split] = rows_to_examples(located, options)
    return examples
