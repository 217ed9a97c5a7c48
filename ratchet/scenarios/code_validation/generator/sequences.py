"""Level 3: functions that take lists or texts apart and put them together again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ratchet.scenarios.code_validation.generator.phrases import (
    FUNCTION_NAMES,
    draw_condition,
    draw_lists,
    draw_number,
    pick,
    small,
)
from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests
from ratchet.scenarios.code_validation.generator.texts import text_problem
from ratchet.scenarios.sandbox.suites import Value

NUM_CASES = 24


@dataclass(frozen=True)
class SequenceStep:
    """One step on a list of integers: English, lines of Python on ``items``, a function."""

    english: str
    lines: tuple[str, ...]
    apply: Callable[[list[int]], list[int]]


@dataclass(frozen=True)
class Ending:
    """The value that is returned of the list at the end."""

    english: str
    lines: tuple[str, ...]
    apply: Callable[[list[int]], Value]


def sequence_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem of level 3."""
    return text_problem(rng) if rng.integers(3) == 0 else _list_problem(rng)


def _list_problem(rng: np.random.Generator) -> Problem:
    name = pick(rng, FUNCTION_NAMES)
    stages = [_draw_keeping(rng), _draw_changing(rng)]
    if rng.integers(2):
        stages.reverse()
    if rng.integers(2):
        stages.append(_draw_reordering(rng))
    ending = draw_ending(rng)
    cases: list[tuple[list[Value], Value]] = []
    for numbers in draw_lists(rng, NUM_CASES):
        items = list(numbers)
        for stage in stages:
            items = stage.apply(items)
        cases.append(([list(numbers)], ending.apply(items)))
    texts = [f"Write a function {name}(items) of a list of integers."]
    texts += [f"{'First' if i == 0 else 'Then'} {stage.english}." for i, stage in enumerate(stages)]
    lines = [f"def {name}(items):"]
    lines += [f"    {line}" for stage in stages for line in stage.lines]
    lines += [f"    {line}" for line in ending.lines]
    return Problem(
        question=" ".join([*texts, f"Finally {ending.english}."]),
        solution="\n".join(lines),
        tests=call_tests(name, cases),
        level=3,
    )


def _draw_keeping(rng: np.random.Generator) -> SequenceStep:
    condition, n = draw_condition(rng), small(rng, 2, 3)
    return pick(
        rng,
        (
            SequenceStep(
                f"keep only the elements x for which {condition.say('x')}",
                (f"items = [x for x in items if {condition.write('x')}]",),
                lambda v: [x for x in v if condition.apply(x)],
            ),
            SequenceStep(
                f"remove the elements x for which {condition.say('x')}",
                (
                    "kept = []",
                    "for x in items:",
                    f"    if not ({condition.write('x')}):",
                    "        kept.append(x)",
                    "items = kept",
                ),
                lambda v: [x for x in v if not condition.apply(x)],
            ),
            SequenceStep(
                f"drop the first {n} elements (all, if there are no more)",
                (f"items = items[{n}:]",),
                lambda v: v[n:],
            ),
            SequenceStep(
                "keep only the first occurrence of each number",
                (
                    "seen = []",
                    "for x in items:",
                    "    if x not in seen:",
                    "        seen.append(x)",
                    "items = seen",
                ),
                lambda v: list(dict.fromkeys(v)),
            ),
            SequenceStep(
                "keep only every second element, beginning with the first",
                ("items = items[::2]",),
                lambda v: v[0::2],
            ),
        ),
    )


def _draw_changing(rng: np.random.Generator) -> SequenceStep:
    number, condition = draw_number(rng), draw_condition(rng)
    return pick(
        rng,
        (
            SequenceStep(
                f"replace each element x by {number.say('x')}",
                (f"items = [{number.write('x')} for x in items]",),
                lambda v: [number.apply(x) for x in v],
            ),
            SequenceStep(
                f"replace each element x for which {condition.say('x')} by {number.say('x')}",
                (
                    "changed = []",
                    "for x in items:",
                    f"    if {condition.write('x')}:",
                    f"        changed.append({number.write('x')})",
                    "    else:",
                    "        changed.append(x)",
                    "items = changed",
                ),
                lambda v: [number.apply(x) if condition.apply(x) else x for x in v],
            ),
            SequenceStep(
                "replace each element by the sum of all elements up to and including it",
                (
                    "total = 0",
                    "sums = []",
                    "for x in items:",
                    "    total += x",
                    "    sums.append(total)",
                    "items = sums",
                ),
                lambda v: [sum(v[: i + 1]) for i in range(len(v))],
            ),
            SequenceStep(
                "replace the list by the differences of neighbours, each element minus the one"
                " before it (the first has none)",
                ("items = [items[i] - items[i - 1] for i in range(1, len(items))]",),
                lambda v: [b - a for a, b in pairwise(v)],
            ),
        ),
    )


def _draw_reordering(rng: np.random.Generator) -> SequenceStep:
    n = small(rng, 2, 3)
    return pick(
        rng,
        (
            SequenceStep("sort the list upwards", ("items = sorted(items)",), sorted),
            SequenceStep(
                "sort the list downwards",
                ("items = sorted(items, reverse=True)",),
                lambda v: sorted(v)[::-1],
            ),
            SequenceStep("reverse the list", ("items = items[::-1]",), lambda v: list(reversed(v))),
            SequenceStep(
                f"move the first {n} elements to the end of the list",
                (f"items = items[{n}:] + items[:{n}]",),
                lambda v: [*v[n:], *v[:n]],
            ),
        ),
    )


def draw_ending(rng: np.random.Generator) -> Ending:
    """Sample the value that is returned of a list of integers."""
    condition, none = draw_condition(rng), small(rng, -1, 0)
    return pick(
        rng,
        (
            Ending("return the list", ("return items",), lambda v: list[Value](v)),
            Ending("return the sum of the list", ("return sum(items)",), sum),
            Ending(
                f"return the number of elements x for which {condition.say('x')}",
                (
                    "count = 0",
                    "for x in items:",
                    f"    if {condition.write('x')}:",
                    "        count += 1",
                    "return count",
                ),
                lambda v: sum(condition.apply(x) for x in v),
            ),
            Ending(
                f"return the largest element minus the smallest, or {none} if the list is empty",
                ("if not items:", f"    return {none}", "return max(items) - min(items)"),
                lambda v: max(v) - min(v) if v else none,
            ),
            Ending(
                f"return the last element, or {none} if the list is empty",
                ("if len(items) == 0:", f"    return {none}", "return items[-1]"),
                lambda v: v[-1] if v else none,
            ),
            Ending(
                f"return the position (from 0) of the first x for which {condition.say('x')}, or"
                f" {none - 1} if there is none",
                (
                    "for i in range(len(items)):",
                    f"    if {condition.write('items[i]')}:",
                    "        return i",
                    f"return {none - 1}",
                ),
                lambda v: next((i for i, x in enumerate(v) if condition.apply(x)), none - 1),
            ),
        ),
    )
