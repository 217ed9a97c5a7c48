"""Level 4: functions with an inner function, nested loops, runs and groups."""

from __future__ import annotations

from itertools import combinations, groupby

import numpy as np

from ratchet.scenarios.code_validation.generator.phrases import (
    FUNCTION_NAMES,
    Condition,
    draw_condition,
    draw_lists,
    draw_number,
    pick,
    small,
)
from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests
from ratchet.scenarios.code_validation.generator.sequences import SequenceStep, draw_ending
from ratchet.scenarios.sandbox.suites import Value

NUM_CASES = 24


def composed_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem of level 4."""
    name = pick(rng, FUNCTION_NAMES)
    condition, number, other = draw_condition(rng), draw_number(rng), draw_number(rng)
    core, ending = _draw_core(rng), draw_ending(rng)

    def helper(x: int) -> int:
        return number.apply(x) if condition.apply(x) else other.apply(x)

    question = (
        f"Write a function {name}(numbers) of a list of integers. For an integer x let g(x) be the"
        f" following: if {condition.say('x')}, {number.say('x')}; otherwise {other.say('x')}."
        f" {core.english} Finally {ending.english}."
    )
    lines = (
        "def g(x):",
        f"    if {condition.write('x')}:",
        f"        return {number.write('x')}",
        f"    return {other.write('x')}",
        "",
        f"def {name}(numbers):",
        "    values = [g(x) for x in numbers]",
        *(f"    {line}" for line in (*core.lines, *ending.lines)),
    )
    cases: list[tuple[list[Value], Value]] = []
    for numbers in draw_lists(rng, NUM_CASES):
        items = core.apply([helper(x) for x in numbers])
        cases.append(([list(numbers)], ending.apply(items)))
    return Problem(question, "\n".join(lines), call_tests(name, cases), level=4)


def _draw_core(rng: np.random.Generator) -> SequenceStep:
    condition, modulus = draw_condition(rng), small(rng, 2, 4)
    draws = (_pairs_core, _runs_core, _groups_core, _merge_core)
    return pick(rng, draws)(condition, modulus)


def _pairs_core(condition: Condition, modulus: int) -> SequenceStep:
    lines = (
        "items = []",
        "for i in range(len(values)):",
        "    for j in range(i + 1, len(values)):",
        "        s = values[i] + values[j]",
        f"        if {condition.write('s')}:",
        f"            items.append(s + {modulus} * i)",
    )

    def apply(values: list[int]) -> list[int]:
        pairs = combinations(enumerate(values), 2)
        sums = [(i, a + b) for (i, a), (_, b) in pairs]
        return [s + modulus * i for i, s in sums if condition.apply(s)]

    return SequenceStep(
        "Let v be the list of g(x) for the x in numbers. For all positions i < j of v, in order of"
        f" i and then of j, let s be v[i] + v[j]; if {condition.say('s')}, append s plus {modulus}"
        " times i to the list items, which is empty at first (positions start from 0).",
        lines,
        apply,
    )


def _runs_core(condition: Condition, modulus: int) -> SequenceStep:
    lines = (
        "items = []",
        "length = 0",
        "for v in values:",
        f"    if {condition.write('v')}:",
        "        length += 1",
        "    else:",
        "        if length > 0:",
        "            items.append(length)",
        "        length = 0",
        "if length > 0:",
        "    items.append(length)",
    )

    def apply(values: list[int]) -> list[int]:
        return [len(list(run)) for holds, run in groupby(values, condition.apply) if holds]

    return SequenceStep(
        "In the list of g(x) for the x in numbers, look at the longest possible stretches of"
        f" neighbouring elements v for all of which {condition.say('v')}, and let items be the list"
        " of their lengths in order.",
        lines,
        apply,
    )


def _groups_core(condition: Condition, modulus: int) -> SequenceStep:
    lines = (
        "sums = {}",
        "for v in values:",
        f"    key = v % {modulus}",
        "    if key not in sums:",
        "        sums[key] = 0",
        "    sums[key] += v",
        "items = [sums[key] for key in sorted(sums)]",
    )

    def apply(values: list[int]) -> list[int]:
        keys = sorted({v % modulus for v in values})
        return [sum(v for v in values if v % modulus == key) for key in keys]

    return SequenceStep(
        "Group the values g(x) for the x in numbers by their remainder modulo"
        f" {modulus}, and let items be the list of the groups' sums, in increasing order of the"
        " remainder.",
        lines,
        apply,
    )


def _merge_core(condition: Condition, modulus: int) -> SequenceStep:
    lines = (
        "items = []",
        "for v in values:",
        f"    if items and ({condition.write('(items[-1] + v)')}):",
        "        items[-1] = items[-1] + v",
        "    else:",
        "        items.append(v)",
    )

    def apply(values: list[int]) -> list[int]:
        items: list[int] = []
        for v in values:
            last = items.pop() if items else None
            if last is None:
                items = [v]
            elif condition.apply(last + v):
                items = [*items, last + v]
            else:
                items = [*items, last, v]
        return items

    return SequenceStep(
        "Go through the values v = g(x) for the x in numbers with a list items that is empty at"
        " first: if items is not empty, let s be its last element plus v; if moreover"
        f" {condition.say('s')}, replace the last element of items by s. In all other cases append"
        " v to items.",
        lines,
        apply,
    )
