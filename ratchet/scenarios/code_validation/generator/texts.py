"""The texts of level 3: functions that go through the characters or words of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ratchet.scenarios.code_validation.generator.phrases import (
    FUNCTION_NAMES,
    pick,
    pick_distinct,
    small,
)
from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests
from ratchet.scenarios.sandbox.suites import Value

WORDS = (
    *("apple", "Banana", "tree", "cloud", "Xylophone", "I", "am", "level", "noon", "Queue"),
    *("river7", "e4", "rhythm", "Otto", "under", "STOP", "z", "a1b2", "moon", "island"),
)
VOWELS = "aeiou"
NUM_CASES = 20


@dataclass(frozen=True)
class _Part:
    """Something done with a character ``c`` or a word ``w``."""

    english: str
    code: str
    apply: Callable[[str], str]


@dataclass(frozen=True)
class _Test:
    """A condition on a character ``c`` or a word ``w``."""

    english: str
    code: str
    apply: Callable[[str], bool]


def text_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem about a text."""
    return _word_problem(rng) if rng.integers(2) else _character_problem(rng)


def _draw_texts(rng: np.random.Generator) -> list[str]:
    texts = ["", pick(rng, WORDS)]
    while len(texts) < NUM_CASES:
        texts.append(" ".join(pick_distinct(rng, WORDS, small(rng, 2, 5))))
    return texts


def _character_problem(rng: np.random.Generator) -> Problem:
    name = pick(rng, FUNCTION_NAMES)
    tests = pick_distinct(rng, _CHARACTER_TESTS, 2)
    first, second = pick_distinct(rng, _character_changes(rng), 2)
    cases: list[tuple[list[Value], Value]] = []
    for text in _draw_texts(rng):
        parts = [
            first.apply(c) if tests[0].apply(c) else second.apply(c) if tests[1].apply(c) else c
            for c in text
        ]
        cases.append(([text], "".join(parts)))
    question = (
        f"Write a function {name}(text). Go through the characters c of the text and build a new"
        f" text: if {tests[0].english}, {first.english}; otherwise, if {tests[1].english},"
        f" {second.english}; otherwise append c. Return the new text. The vowels are a, e, i, o, u"
        " in lower and upper case."
    )
    lines = (
        f"def {name}(text):",
        "    result = ''",
        "    for c in text:",
        f"        if {tests[0].code}:",
        f"            result += {first.code}",
        f"        elif {tests[1].code}:",
        f"            result += {second.code}",
        "        else:",
        "            result += c",
        "    return result",
    )
    return Problem(question, "\n".join(lines), call_tests(name, cases), level=3)


def _word_problem(rng: np.random.Generator) -> Problem:
    name = pick(rng, FUNCTION_NAMES)
    test, change = pick(rng, _word_tests(rng)), pick(rng, _word_changes(rng))
    joint, word = pick(rng, (("-", "hyphens"), (" ", "spaces"), ("", "nothing"))), "w"
    backwards = bool(rng.integers(2))
    cases: list[tuple[list[Value], Value]] = []
    for text in _draw_texts(rng):
        words = text.split()[::-1] if backwards else text.split()
        cases.append(([text], joint[0].join(change.apply(w) for w in words if test.apply(w))))
    order = "from the last to the first" if backwards else "from the first to the last"
    question = (
        f"Write a function {name}(text). The words of the text are separated by spaces. Go through"
        f" the words {word} {order}, leave out those for which it is not true that"
        f" {test.english}, and {change.english}. Return the results joined with {joint[1]} between"
        " them."
    )
    lines = (
        f"def {name}(text):",
        "    parts = []",
        f"    for w in {'reversed(text.split())' if backwards else 'text.split()'}:",
        f"        if {test.code}:",
        f"            parts.append({change.code})",
        f"    return {joint[0]!r}.join(parts)",
    )
    return Problem(question, "\n".join(lines), call_tests(name, cases), level=3)


_CHARACTER_TESTS = (
    _Test("c is a vowel", "c in 'aeiouAEIOU'", lambda c: c.lower() in VOWELS),
    _Test("c is a digit", "c.isdigit()", str.isdigit),
    _Test("c is an upper-case letter", "c.isupper()", str.isupper),
    _Test("c is a space", "c == ' '", lambda c: c == " "),
    _Test("c is one of the letters from a to m", "'a' <= c <= 'm'", lambda c: "a" <= c <= "m"),
    _Test("c is one of the letters l, n and o", "c in 'lno'", lambda c: c in ("l", "n", "o")),
)


def _character_changes(rng: np.random.Generator) -> tuple[_Part, ...]:
    sign, n = pick(rng, "*#_!"), small(rng, 2, 3)
    return (
        _Part(f"append {sign}", repr(sign), lambda c: sign),
        _Part(f"append c {n} times", f"c * {n}", lambda c: c * n),
        _Part("append c in upper case", "c.upper()", str.upper),
        _Part("append c in lower case", "c.lower()", str.lower),
        _Part(f"append c and then {sign}", f"c + {sign!r}", lambda c: c + sign),
        _Part(f"append {sign} and then c", f"{sign!r} + c", lambda c: sign + c),
        _Part("append nothing", "''", lambda c: ""),
    )


def _word_tests(rng: np.random.Generator) -> tuple[_Test, ...]:
    n = small(rng, 3, 5)
    return (
        _Test(f"w has at least {n} characters", f"len(w) >= {n}", lambda w: len(w) >= n),
        _Test(f"w has fewer than {n} characters", f"len(w) < {n}", lambda w: len(w) < n),
        _Test(
            "w begins with a vowel (a, e, i, o, u in lower or upper case)",
            "w[0] in 'aeiouAEIOU'",
            lambda w: w[0].lower() in VOWELS,
        ),
        _Test("w contains the letter e", "'e' in w", lambda w: "e" in w),
        _Test("w is all lower case", "w == w.lower()", lambda w: w == w.lower()),
        _Test("w has an odd number of characters", "len(w) % 2 == 1", lambda w: len(w) % 2 == 1),
    )


def _word_changes(rng: np.random.Generator) -> tuple[_Part, ...]:
    n = small(rng, 2, 3)
    return (
        _Part("take each backwards", "w[::-1]", lambda w: "".join(reversed(w))),
        _Part(f"take the first {n} characters of each", f"w[:{n}]", lambda w: w[0:n]),
        _Part(
            f"move the first {n} characters of each to its end",
            f"w[{n}:] + w[:{n}]",
            lambda w: w[n:] + w[0:n],
        ),
        _Part("take each in upper case", "w.upper()", str.upper),
        _Part(
            "take the first and the last character of each (twice the same if it has only one)",
            "w[0] + w[-1]",
            lambda w: w[0] + w[-1],
        ),
        _Part(
            "take the number of its characters followed by the word",
            "str(len(w)) + w",
            lambda w: f"{len(w)}{w}",
        ),
    )
